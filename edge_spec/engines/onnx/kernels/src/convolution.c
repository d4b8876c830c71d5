/* What short convolutions keep; their arithmetic one float at a time, and which variant to take. */
#include "convolution.h"

#include <string.h>

#include "target.h"
#include "vectors_scalar.h"
#define VARIANT er_convolution_reference
#define VARIANT_NAME "reference"
#define RUNS_HERE true
#include "convolution_body.h"

#if ER_X86
extern const er_convolution_variant er_convolution_avx512, er_convolution_avx2;
#elif ER_ARM
extern const er_convolution_variant er_convolution_neon;
#endif

static const er_convolution_variant *const variants[] = {
#if ER_X86
    &er_convolution_avx512,
    &er_convolution_avx2,
#elif ER_ARM
    &er_convolution_neon,
#endif
    &er_convolution_reference,
};

const er_convolution_variant *er_convolution_find(const char *name) {
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if ((*name == '\0' || strncmp(name, variants[i]->name, strlen(variants[i]->name)) == 0) &&
            variants[i]->runs_here())
            return variants[i];
    return NULL;
}

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
