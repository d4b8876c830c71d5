/* Delta nets, written once for all vector widths. See vectors_body.h. */
#include <math.h>

#include "delta.h"
#include "sigmoid.h"

enum { COLUMN_PARTS = ER_COLUMNS / WIDTH };

static float squares(const float *x, size_t n) {
    float lanes[ER_COLUMNS];
    vec sums[COLUMN_PARTS];
    for (int p = 0; p < COLUMN_PARTS; p++)
        sums[p] = SET1(0.0f);
    for (size_t i = 0; i < n; i += ER_COLUMNS)
        for (int p = 0; p < COLUMN_PARTS; p++) {
            const vec part = LOAD(x + i + p * WIDTH);
            sums[p] = FMA(part, part, sums[p]);
        }
    for (int p = 0; p < COLUMN_PARTS; p++)
        STORE(lanes + p * WIDTH, sums[p]);
    for (int apart = ER_COLUMNS / 2; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++)
            lanes[i] += lanes[i + apart];
    return lanes[0];
}

static void normalize(const float *x, size_t n, float epsilon, float *y) {
    const vec factor = SET1(1.0f / sqrtf(squares(x, n) + epsilon));
    for (size_t i = 0; i < n; i += WIDTH)
        STORE(y + i, MUL(LOAD(x + i), factor));
}

/* Decays and shares of all rows; there is room for whole registers. */
static void read_scores(const er_delta *d, size_t head, float *decays, float *shares) {
    size_t whole = d->n_rows;
    for (; whole % ER_COLUMNS != 0; whole++)
        decays[whole] = shares[whole] = 0.0f;
    for (size_t r = 0; r < d->n_rows; r++) {
        decays[r] = d->scores[2 * r * d->n_head + head];
        shares[r] = d->scores[(2 * r + 1) * d->n_head + head];
    }
    for (size_t r = 0; r < whole; r += WIDTH) {
        const vec step = softplus(ADD(LOAD(decays + r), SET1(d->steps[head])));
        STORE(decays + r, exponential(MIN(SET1(86.0f), MUL(SET1(d->rates[head]), step))));
        STORE(shares + r, sigmoid(LOAD(shares + r)));
    }
}

ER_INLINE vec total(vec sums[4][COLUMN_PARTS], int p) { return ADD(ADD(sums[0][p], sums[1][p]), ADD(sums[2][p], sums[3][p])); }

ER_INLINE void clear(vec sums[4][COLUMN_PARTS]) {
    ER_UNROLL for (int u = 0; u < 4; u++)
        ER_UNROLL for (int p = 0; p < COLUMN_PARTS; p++)
            sums[u][p] = SET1(0.0f);
}

/* One row: 16 columns of a state, [size, 16], from one place to another. answers: a constant; whether there is an `out`. */
ER_INLINE void go_over(bool answers, const float *from, float *to, const float *q, const float *k, const float *value,
                       float decay, float share, size_t size, float *out) {
    const vec fading = SET1(decay);
    vec sums[4][COLUMN_PARTS], wrong[COLUMN_PARTS];
    clear(sums);
    for (size_t i = 0; i < size; i += 4)
        ER_UNROLL for (int u = 0; u < 4; u++)
            ER_UNROLL for (int p = 0; p < COLUMN_PARTS; p++)
                sums[u][p] = FMA(MUL(LOAD(from + (i + u) * ER_COLUMNS + p * WIDTH), fading), SET1(k[i + u]), sums[u][p]);
    ER_UNROLL for (int p = 0; p < COLUMN_PARTS; p++)
        wrong[p] = MUL(SUB(LOAD(value + p * WIDTH), total(sums, p)), SET1(share));
    clear(sums);
    for (size_t i = 0; i < size; i += 4)
        ER_UNROLL for (int u = 0; u < 4; u++)
            ER_UNROLL for (int p = 0; p < COLUMN_PARTS; p++) {
                const size_t at = (i + u) * ER_COLUMNS + p * WIDTH;
                const vec s = FMA(SET1(k[i + u]), wrong[p], MUL(LOAD(from + at), fading));
                STORE(to + at, s);
                if (answers)
                    sums[u][p] = FMA(s, SET1(q[i + u]), sums[u][p]);
            }
    if (answers)
        ER_UNROLL for (int p = 0; p < COLUMN_PARTS; p++)
            STORE(out + p * WIDTH, MUL(total(sums, p), SET1(1.0f / sqrtf((float)size))));
}

static void answer(const er_delta *d, size_t head, float *scratch) {
    const size_t size = d->size, width = er_delta_channels(d), n_rows = d->n_rows;
    float *decays = scratch, *shares = decays + (n_rows + ER_COLUMNS - 1) / ER_COLUMNS * ER_COLUMNS;
    float *queries = shares + (shares - decays), *keys = queries + n_rows * size, *copy = keys + n_rows * size;
    const float *rows = d->rows + head % d->n_head_k * size;
    const float *values = d->rows + (2 * d->n_head_k + head) * size;
    float *states = d->states + head * size * size, *out = d->out + head * size;
    const float *z = d->z + head * size;
    const size_t out_width = d->n_head * size;
    read_scores(d, head, decays, shares);
    for (size_t r = 0; r < n_rows; r++) {
        normalize(rows + r * width + d->n_head_k * size, size, d->epsilon, keys + r * size);
        if (r >= d->n_silent)
            normalize(rows + r * width, size, d->epsilon, queries + r * size);
    }
    for (size_t j = 0; j < size; j += ER_COLUMNS) {
        float *columns = states + j * size;
        const float *from = columns;
        for (size_t r = 0; r < n_rows; r++) {
            float *to = r < d->n_taken ? columns : copy;
            const float *value = values + r * width + j, *q = queries + r * size, *k = keys + r * size;
            if (r < d->n_silent)
                go_over(false, from, to, q, k, value, decays[r], shares[r], size, NULL);
            else
                go_over(true, from, to, q, k, value, decays[r], shares[r], size,
                        out + (r - d->n_silent) * out_width + j);
            from = to;
        }
    }
    for (size_t r = 0; r < n_rows - d->n_silent; r++) {
        float *y = out + r * out_width;
        const vec factor = SET1(1.0f / sqrtf(squares(y, size) / (float)size + d->epsilon));
        for (size_t j = 0; j < size; j += WIDTH) {
            const vec gate = LOAD(z + r * out_width + j);
            const vec normed = MUL(MUL(LOAD(y + j), factor), LOAD(d->weights + j));
            STORE(y + j, MUL(normed, MUL(gate, sigmoid(gate))));
        }
    }
}
