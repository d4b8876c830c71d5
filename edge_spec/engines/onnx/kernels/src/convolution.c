/* What short convolutions keep. */
#include "convolution.h"

#include <string.h>

void er_keep_inputs(const er_convolution *c, size_t channel, size_t n_channels) {
    const size_t old = er_n_old(&c->span), taken = er_n_taken(&c->span);
    const size_t n = c->n_taps - 1 + er_n_rows(&c->span) - taken;
    /* Ascending: what is read lies behind what is written. */
    for (size_t i = 0; i < n; i++) {
        const size_t source = i + taken; /* as a row of `kept`, in which the new ones would follow */
        float *to = c->kept + i * c->n_channels + channel;
        if (source < c->n_taps - 1 + old) {
            memmove(to, c->kept + source * c->n_channels + channel, n_channels * sizeof(float));
            continue;
        }
        const size_t row = source - (c->n_taps - 1) - old;
        if (!c->gated) {
            memcpy(to, c->x + row * c->n_channels + channel, n_channels * sizeof(float));
            continue;
        }
        const float *b = c->x + 3 * row * c->n_channels + channel, *x = b + 2 * c->n_channels;
        for (size_t k = 0; k < n_channels; k++)
            to[k] = b[k] * x[k];
    }
}
