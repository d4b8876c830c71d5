/* What happens to rows between products, written once for all vector widths up to 8. A file that includes this defines
 * VARIANT, VARIANT_NAME, RUNS_HERE, and includes one of the files vectors_*.h.
 */
#include <math.h>
#include <string.h>

#include "layout.h"
#include "rowwise.h"

enum { SUM_LANES = 8, SUM_PARTS = SUM_LANES / WIDTH, ROWS_AT_ONCE = 8 };

static bool runs_here(void) { return RUNS_HERE; }

/* Coefficients from the highest power of the square on. */
ER_INLINE vec polynomial(vec square, const float *coefficients, int n) {
    vec p = FMA(square, SET1(coefficients[0]), SET1(coefficients[1]));
    for (int i = 2; i < n; i++)
        p = FMA(p, square, SET1(coefficients[i]));
    return p;
}

ER_INLINE vec bounded(vec x, float bound) { return MAX(SET1(-bound), MIN(SET1(bound), x)); }

ER_INLINE vec logistic(vec x) {
    static const float above[] = {4.37031012579801e-11f, 1.15627324459942e-07f, 6.08574864600143e-05f,
                                  8.51377133304701e-03f, 2.48287947061529e-01f};
    static const float below[] = {6.10247389755681e-13f, 5.76102136993427e-09f, 6.29106785017040e-06f,
                                  1.70198817374094e-03f, 1.16817656904453e-01f, 9.93151921023180e-01f};
    x = bounded(x, 18.0f);
    const vec square = MUL(x, x);
    const vec ratio = DIV(MUL(polynomial(square, above, 5), x), polynomial(square, below, 6));
    return MIN(SET1(1.0f), MAX(SET1(0.0f), ADD(ratio, SET1(0.5f))));
}

ER_INLINE vec hyperbolic_tangent(vec x) {
    static const float above[] = {-2.76076847742355e-16f, 2.00018790482477e-13f, -8.60467152213735e-11f,
                                  5.12229709037114e-08f,  1.48572235717979e-05f, 6.37261928875436e-04f,
                                  4.89352455891786e-03f};
    static const float below[] = {1.19825839466702e-06f, 1.18534705686654e-04f, 2.26843463243900e-03f,
                                  4.89352518554385e-03f};
    x = bounded(x, 9.0f);
    const vec square = MUL(x, x);
    return DIV(MUL(polynomial(square, above, 7), x), polynomial(square, below, 4));
}

ER_INLINE vec silu_of(vec x) { return MUL(x, logistic(x)); }

ER_INLINE vec gelu_of(vec x) {
    const vec inner = ADD(MUL(MUL(SET1(0.035677408136300125f), x), x), SET1(0.7978845608028654f));
    return MUL(MUL(SET1(0.5f), x), ADD(hyperbolic_tangent(MUL(x, inner)), SET1(1.0f)));
}

ER_INLINE vec relu_of(vec x) { return MAX(SET1(0.0f), x); }

/* A loop over whole registers, and then through buffers over what is left. */
#define FOR_ROW(a, b, y, n, EXPRESSION)                                                                        \
    do {                                                                                                       \
        size_t i_ = 0;                                                                                         \
        for (; i_ + WIDTH <= (n); i_ += WIDTH) {                                                               \
            const vec A = LOAD((a) + i_), B = LOAD((b) + i_);                                                  \
            (void)B;                                                                                           \
            STORE((y) + i_, EXPRESSION);                                                                       \
        }                                                                                                      \
        if (i_ < (n)) {                                                                                        \
            float a_[WIDTH] = {0}, b_[WIDTH] = {0}, y_[WIDTH];                                                 \
            memcpy(a_, (a) + i_, ((n)-i_) * sizeof(float));                                                    \
            memcpy(b_, (b) + i_, ((n)-i_) * sizeof(float));                                                    \
            const vec A = LOAD(a_), B = LOAD(b_);                                                              \
            (void)B;                                                                                           \
            STORE(y_, EXPRESSION);                                                                             \
            memcpy((y) + i_, y_, ((n)-i_) * sizeof(float));                                                    \
        }                                                                                                      \
    } while (0)

static void add(const float *a, const float *b, float *y, size_t n) { FOR_ROW(a, b, y, n, ADD(A, B)); }
static void multiply(const float *a, const float *b, float *y, size_t n) { FOR_ROW(a, b, y, n, MUL(A, B)); }
static void scale(const float *x, float factor, float *y, size_t n) { FOR_ROW(x, x, y, n, MUL(A, SET1(factor))); }
static void sigmoid(const float *x, float *y, size_t n) { FOR_ROW(x, x, y, n, logistic(A)); }
static void silu(const float *x, float *y, size_t n) { FOR_ROW(x, x, y, n, silu_of(A)); }
static void gelu(const float *x, float *y, size_t n) { FOR_ROW(x, x, y, n, gelu_of(A)); }
static void relu(const float *x, float *y, size_t n) { FOR_ROW(x, x, y, n, relu_of(A)); }

/* Of so many rows, a constant. Each addition waits for the one before it, so several rows take little longer than one. */
ER_INLINE void norm_rows_in_order(int rows, const float *x, size_t x_stride, const float *weights, float *y,
                                  size_t y_stride, size_t n, float epsilon) {
    float sums[ROWS_AT_ONCE] = {0.0f};
    for (size_t i = 0; i < n; i++)
        ER_UNROLL for (int r = 0; r < rows; r++) {
            const float number = x[(size_t)r * x_stride + i];
            sums[r] += number * number;
        }
    for (int r = 0; r < rows; r++) {
        const float m = sqrtf(sums[r] / (float)n + epsilon), *from = x + (size_t)r * x_stride;
        float *to = y + (size_t)r * y_stride;
        FOR_ROW(from, weights, to, n, MUL(DIV(A, SET1(m)), B));
    }
}

static void norm_in_order(const float *x, size_t x_stride, const float *weights, float *y, size_t y_stride, size_t rows,
                          size_t n, float epsilon) {
    for (; rows >= ROWS_AT_ONCE; rows -= ROWS_AT_ONCE, x += ROWS_AT_ONCE * x_stride, y += ROWS_AT_ONCE * y_stride)
        norm_rows_in_order(ROWS_AT_ONCE, x, x_stride, weights, y, y_stride, n, epsilon);
    for (; rows > 0; rows--, x += x_stride, y += y_stride)
        norm_rows_in_order(1, x, x_stride, weights, y, y_stride, n, epsilon);
}

static void norm(const float *x, const float *weights, float *y, size_t n, float epsilon) {
    if (n < 2 * SUM_LANES) {
        norm_rows_in_order(1, x, n, weights, y, n, n, epsilon);
        return;
    }
    vec sums[SUM_PARTS];
    float lanes[SUM_LANES];
    size_t i = 0;
    for (int p = 0; p < SUM_PARTS; p++)
        sums[p] = SET1(0.0f);
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int p = 0; p < SUM_PARTS; p++) {
            const vec part = LOAD(x + i + p * WIDTH);
            sums[p] = FMA(part, part, sums[p]);
        }
    for (int p = 0; p < SUM_PARTS; p++)
        STORE(lanes + p * WIDTH, sums[p]);
    for (int apart = SUM_LANES / 2; apart > 0; apart /= 2)
        for (int lane = 0; lane < apart; lane++)
            lanes[lane] += lanes[lane + apart];
    for (; i < n; i++)
        lanes[0] = fmaf(x[i], x[i], lanes[0]);
    const float inverse = 1.0f / sqrtf(lanes[0] / (float)n + epsilon);
    FOR_ROW(x, weights, y, n, MUL(MUL(A, SET1(inverse)), B));
}

const er_rowwise_variant VARIANT = {VARIANT_NAME, runs_here, norm, norm_in_order, add, multiply, scale,
                                    sigmoid, silu, gelu, relu};
