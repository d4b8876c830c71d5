/* Compares what every variant computes between the products of experts with the reference, bit for bit, in so many
 * rounds. on_arm.sh and sanitize.sh build and run it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digest.h"
#include "experts.h"
#include "random.h"

enum { MOST = 200, PADDED = 208 };

static float number(float size) { return (float)(int32_t)next() * 0x1p-31f * size; }
static void fill(float *x, size_t n, float size) {
    for (size_t i = 0; i < n; i++)
        x[i] = number(size);
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 300;
    static const char *const names[] = {"avx512-vnni", "avx2", "neon"};
    static float scores[MOST], shares[2][MOST], gates[2][PADDED], ups[PADDED], outs[2][MOST], scratch[2 * PADDED], preferences[MOST];
    static int32_t chosen[2][MOST];
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
            er_choice choice = {.n_expert = 1 + below(MOST), .of_all = round & 1, .normalized = round & 2};
            choice.n_used = 1 + below(choice.n_expert);
            const size_t n = 16 * (1 + below(PADDED / 16)), n_kept = n < MOST ? n - below(16) : MOST;
            const float limit = round & 4 ? 7.0f : 0.0f, alpha = round & 8 ? 1.702f : 1.0f, share = number(1.0f);
            fill(scores, MOST, round & 16 ? 300.0f : 3.0f);
            fill(preferences, MOST, 1.0f);
            choice.preferences = round & 64 ? preferences : NULL;
            for (size_t i = 0; round & 32 && i < MOST; i++) /* ties */
                scores[i] = (float)(int)scores[i];
            fill(gates[0], PADDED, 120.0f);
            fill(ups, PADDED, 20.0f);
            fill(outs[0], MOST, 2.0f);
            memcpy(gates[1], gates[0], sizeof gates[0]);
            memcpy(outs[1], outs[0], sizeof outs[0]);
            for (int v = 0; v < 2; v++) {
                er_choose(variants[v], &choice, scores, chosen[v], shares[v], scratch);
                variants[v]->gate(gates[v], ups, n, alpha, limit);
                variants[v]->add(share, gates[v], n_kept, outs[v]);
            }
            if (memcmp(chosen[0], chosen[1], 4 * choice.n_used) || memcmp(shares[0], shares[1], 4 * choice.n_used) ||
                memcmp(gates[0], gates[1], sizeof gates[0]) || memcmp(outs[0], outs[1], sizeof outs[0])) {
                printf("experts %s differs from the reference in round %d\n", names[which], round);
                return 1;
            }
            add_to_digest(chosen[1], choice.n_used);
            add_to_digest(shares[1], choice.n_used);
            add_to_digest(outs[1], n_kept);
        }
        printf("experts %s equals the reference, digest %016llx\n", names[which], (unsigned long long)digest);
    }
    if (n_variants == 0)
        printf("experts: no variant but the reference runs here\n");
    return 0;
}
