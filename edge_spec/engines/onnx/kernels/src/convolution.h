/* Short convolutions along a text, channel by channel, and the order of their sums.
 *
 * What comes in for a row is a number of every channel, or three, of which two gate: b, c and x stand for b * x, and the
 * result is multiplied by c. With t taps
 *
 *     sum = (sum over i ascending of weight_i * in_(row - t + 1 + i)), fused multiply-adds from +0 on
 *     out = c * sum where there are gates, else sum * (1 / (1 + exp(-sum))), by the polynomial in exponential.h
 *
 * What came in for the t - 1 rows before the first one is kept, zeros at the beginning of a text; then comes what is
 * kept as recurrent.h says.
 */
#ifndef EDGE_ROWS_CONVOLUTION_H
#define EDGE_ROWS_CONVOLUTION_H

#include "recurrent.h"
#include "shared.h"

typedef struct {
    const float *x;       /* what comes in for the new rows: [n_new, n_channels], or [n_new, 3 * n_channels] with gates */
    float *kept;          /* [n_taps - 1 + capacity, n_channels] */
    const float *weights; /* [n_taps, n_channels] */
    size_t n_channels, n_taps;
    bool gated;
    er_span span;
} er_convolution;

/* Keeps what a further call needs, of some channels, after all rows were computed. */
void er_keep_inputs(const er_convolution *c, size_t channel, size_t n_channels);

#endif
