/* Short convolutions, written once for all vector widths. See vectors_body.h. */
#include "convolution.h"
#include "sigmoid.h"

/* What came in as row `row` of those before the first row, of all rows, or of the new ones. */
ER_INLINE vec came_in(const er_convolution *c, size_t row, size_t channel) {
    const size_t kept = c->n_taps - 1 + er_n_old(&c->span);
    if (row < kept)
        return LOAD(c->kept + row * c->n_channels + channel);
    if (!c->gated)
        return LOAD(c->x + (row - kept) * c->n_channels + channel);
    const float *b = c->x + 3 * (row - kept) * c->n_channels + channel;
    return MUL(LOAD(b), LOAD(b + 2 * c->n_channels));
}

static void convolve(const er_convolution *c, size_t first, size_t end, size_t channel, size_t n_channels,
                     float *out) {
    const size_t width = c->n_channels;
    for (size_t row = first; row < end; row++)
        for (size_t k = channel; k < channel + n_channels; k += WIDTH) {
            vec sum = SET1(0.0f);
            for (size_t i = 0; i < c->n_taps; i++)
                sum = FMA(LOAD(c->weights + i * width + k), came_in(c, row + i, k), sum);
            if (c->gated)
                sum = MUL(LOAD(c->x + (3 * (row - er_n_old(&c->span)) + 1) * width + k), sum);
            else
                sum = MUL(sum, sigmoid(sum));
            STORE(out + (row - first) * width + k, sum);
        }
}
