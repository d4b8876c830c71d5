/* What is computed between the products of experts, written once for all vector widths. See vectors_body.h. */
#include <math.h>

#include "experts.h"
#include "sigmoid.h"

static void weigh(float *x, float less, size_t n) {
    for (size_t i = 0; i < n; i += WIDTH)
        STORE(x + i, exponential(SUB(LOAD(x + i), SET1(less))));
}

static void squash(float *x, size_t n) {
    for (size_t i = 0; i < n; i += WIDTH)
        STORE(x + i, sigmoid(LOAD(x + i)));
}

/* x / (1 + exp(-alpha * x)); exp's argument is bounded, so that it is never infinite. */
ER_INLINE vec swish(vec x, float alpha) {
    const vec steep = MIN(SET1(86.0f), MUL(SET1(-alpha), x));
    return DIV(x, ADD(SET1(1.0f), exponential(steep)));
}

static void gate(float *gates, const float *ups, size_t n, float alpha, float limit) {
    for (size_t i = 0; i < n; i += WIDTH) {
        vec x = LOAD(gates + i), up = LOAD(ups + i);
        if (limit > 0.0f) { /* the bound comes first: what is no number stays so */
            x = MIN(SET1(limit), x);
            up = ADD(MAX(SET1(-limit), MIN(SET1(limit), up)), SET1(1.0f));
        }
        STORE(gates + i, MUL(swish(x, alpha), up));
    }
}

static void add(float share, const float *x, size_t n, float *y) {
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        STORE(y + i, FMA(SET1(share), LOAD(x + i), LOAD(y + i)));
    for (; i < n; i++)
        y[i] = fmaf(share, x[i], y[i]);
}
