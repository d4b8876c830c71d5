/* Compares what every variant makes of short convolutions and delta nets with the reference, bit for bit, in so many
 * rounds. on_arm.sh and sanitize.sh build and run it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digest.h"
#include "random.h"
#include "vectors.h"

enum { ROWS = 12, MOST = 3 * ROWS, TAPS = 5, CHANNELS = 512, HEADS = 4, SIZE = 64, KEPT = TAPS - 1 + 2 * ROWS };

static float number(float size) { return (float)(int32_t)next() * 0x1p-31f * size; }
static void fill(float *x, size_t n, float size) {
    for (size_t i = 0; i < n; i++)
        x[i] = number(size);
}

static float x[ROWS * 3 * CHANNELS], weights[TAPS * CHANNELS], kept[2][KEPT * CHANNELS], convolved[2][MOST * CHANNELS];
static float scores[MOST * 2 * HEADS], z[MOST * HEADS * SIZE], steps[HEADS], rates[HEADS], norm[SIZE];
static float states[2][HEADS * SIZE * SIZE], outs[2][MOST * HEADS * SIZE];

static void convolve(const er_vectors *variant, er_convolution c, int v) {
    const size_t first = c.gated ? er_n_old(&c.span) : 0, n_rows = er_n_rows(&c.span);
    c.kept = kept[v];
    for (size_t channel = 0; channel < c.n_channels; channel += 64) {
        const size_t n = c.n_channels - channel < 64 ? c.n_channels - channel : 64;
        variant->convolve(&c, first, n_rows, channel, n, convolved[v]);
        er_keep_inputs(&c, channel, n);
    }
}

static void answer(const er_vectors *variant, er_delta d, int v) {
    float *scratch = malloc(sizeof(float) * er_delta_scratch(d.n_rows, d.size));
    d.rows = convolved[v], d.states = states[v], d.out = outs[v];
    for (size_t head = 0; head < d.n_head; head++)
        variant->answer(&d, head, scratch);
    free(scratch);
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 300;
    static const char *const names[] = {"avx512-vnni", "avx2", "neon"};
    int n_variants = 0;
    for (int which = 0; which < 3; which++) {
        const er_vectors *variants[2] = {er_find_vectors("reference"), er_find_vectors(names[which])};
        if (variants[1] == NULL)
            continue;
        n_variants++;
        restart(1);
        begin_digest();
        for (int i = 0; i < rounds; i++) {
            const int round = settings_of(i);
            er_delta d = {.scores = scores, .z = z, .steps = steps, .rates = rates, .weights = norm, .epsilon = 1e-5f,
                          .size = 16 * (1 + below(SIZE / 16)), .n_head_k = 1 + below(2)};
            d.n_head = d.n_head_k * (1 + below(HEADS / d.n_head_k));
            er_convolution c = {.x = x, .weights = weights, .n_channels = er_delta_channels(&d),
                                .n_taps = 1 + below(TAPS), .gated = round & 1};
            c.span = (er_span){below(ROWS), below(ROWS / 2), below(ROWS), 0};
            c.span.n_read = c.span.n_pending == 0 ? below(c.span.n_new + 1) : 0;
            d.n_rows = er_n_rows(&c.span), d.n_silent = er_n_old(&c.span), d.n_taken = er_n_taken(&c.span);
            fill(x, sizeof x / 4, 3.0f), fill(weights, sizeof weights / 4, 1.0f), fill(z, sizeof z / 4, 9.0f);
            fill(scores, sizeof scores / 4, round & 2 ? 300.0f : 3.0f), fill(norm, SIZE, 2.0f);
            fill(steps, HEADS, 2.0f), fill(rates, HEADS, 2.0f);
            if (i % 8 == 0)
                fill(kept[0], KEPT * CHANNELS, 2.0f), fill(states[0], HEADS * SIZE * SIZE, 1.0f);
            memcpy(kept[1], kept[0], sizeof kept[0]), memcpy(states[1], states[0], sizeof states[0]);
            memset(outs, 0, sizeof outs), memset(convolved, 0, sizeof convolved);
            for (int v = 0; v < 2; v++) {
                convolve(variants[v], c, v);
                if (!c.gated)
                    answer(variants[v], d, v);
            }
            if (memcmp(kept[0], kept[1], sizeof kept[0]) || memcmp(convolved[0], convolved[1], sizeof convolved[0]) ||
                memcmp(states[0], states[1], sizeof states[0]) || memcmp(outs[0], outs[1], sizeof outs[0])) {
                printf("recurrent layers %s differ from the reference in round %d\n", names[which], round);
                return 1;
            }
            add_to_digest(convolved[1], c.n_channels * er_n_rows(&c.span));
            add_to_digest(states[1], HEADS * SIZE * SIZE);
            add_to_digest(outs[1], sizeof outs[1] / 4);
        }
        printf("recurrent layers %s equal the reference, digest %016llx\n", names[which], (unsigned long long)digest);
    }
    if (n_variants == 0)
        printf("recurrent layers: no variant but the reference runs here\n");
    return 0;
}
