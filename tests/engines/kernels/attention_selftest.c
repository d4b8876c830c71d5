/* Compares every variant of attention that runs here with the reference, bit for bit, on random trees in scattered
 * tiles, in so many rounds (128 show every combination of settings). on_arm.sh and sanitize.sh build and run it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digest.h"
#include "half.h"
#include "random.h"
#include "vectors.h"

enum { HEADS = 6, KV = 2, HD = 48, CELLS = 112, ROWS = 20, WIDTH = (HEADS + 2 * KV) * HD };

static float number(void) { return (float)(int32_t)next() * 0x1p-31f * 3.0f; }
static void fill(float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = number();
}
static void fill_halves(float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        ((uint16_t *)x)[i] = er_to_half(number());
}

void edge_rows_copy_cells(void *const *keys, void *const *values, size_t n_layers, size_t n_heads, size_t n_cells,
                          size_t head_dim, size_t size, const int64_t *cells, size_t n);

/* A cell goes to another place of the pool, and is found there. */
static void move_cell(const er_attention *a) {
    const int64_t pairs[] = {(int64_t)below(CELLS), (int64_t)below(CELLS)};
    const size_t size = a->f16 ? 2 : 4;
    edge_rows_copy_cells(&a->keys, &a->values, 1, KV, CELLS, HD, size, pairs, 1);
    for (int end = 0; end < 2; end++) {
        float number = 0;
        memcpy(&number, (char *)a->values + (size_t)pairs[end] * HD * size, size);
        add_to_digest(&number, 1);
    }
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 300;
    static const char *const names[] = {"avx512", "avx2", "neon"};
    static float qkv[ROWS * WIDTH], keys[KV * CELLS * HD], values[KV * CELLS * HD], cosines[CELLS * HD / 2],
        sines[CELLS * HD / 2], scales[CELLS], sinks[HEADS], out[2][ROWS * HEADS * HD];
    int32_t parents[ROWS], depths[ROWS], tiles[CELLS / ER_LANES];
    int n_variants = 0;
    for (int which = 0; which < 3; which++) {
        const er_vectors *variants[2] = {er_find_vectors("reference"), er_find_vectors(names[which])};
        if (variants[1] == NULL)
            continue;
        n_variants++;
        restart(1);
        begin_digest();
        fill(cosines, CELLS * HD / 2);
        fill(sines, CELLS * HD / 2);
        fill(scales, CELLS);
        fill(sinks, HEADS);
        for (int i = 0; i < rounds; i++) {
            const int round = settings_of(i);
            const size_t n = 1 + below(ROWS);
            er_text text = {.tiles = tiles, .parents = parents, .depths = depths, .n_text = below(90), .n_pending = n,
                            .n_rows = n, .is_chain = true};
            er_attention a = {.qkv = qkv, .keys = keys, .values = values, .cosines = cosines, .sines = sines,
                              .texts = &text, .n_texts = 1, .n_rows = n, .n_cells = CELLS,
                              .n_seen = text.n_text + n, .n_pending = n,
                              .n_head = HEADS, .n_head_kv = KV, .head_dim = HD,
                              .n_rotated = round & 4 ? HD : HD - 16, .window = round & 8 ? 1 + below(40) : 0,
                              .f16 = round & 16, .query_scales = round & 32 ? scales : NULL, .interleaved = round & 1,
                              .sinks = round & 64 ? sinks : NULL};
            for (size_t i = 0; i < CELLS / ER_LANES; i++) { /* scattered: a tile goes where another one was */
                const size_t other = below(i + 1);
                tiles[i] = tiles[other];
                tiles[other] = (int32_t)i;
            }
            for (size_t i = 0; i < n; i++) {
                parents[i] = round & 2 ? (int32_t)i - 1 : (int32_t)below(i + 1) - 1;
                depths[i] = parents[i] < 0 ? 0 : depths[parents[i]] + 1;
                text.is_chain = text.is_chain && parents[i] == (int32_t)i - 1;
            }
            fill(qkv, ROWS * WIDTH);
            (a.f16 ? fill_halves : fill)(keys, KV * CELLS * HD);
            (a.f16 ? fill_halves : fill)(values, KV * CELLS * HD);
            float *scratch = malloc(sizeof(float) * er_attention_scratch(&a));
            for (int v = 0; v < 2; v++) { /* the reference takes all heads of queries that share keys at once */
                const size_t shared = HEADS / KV, at_once = v == 0 || round & 1 ? shared : 1;
                a.out = out[v];
                for (size_t head = 0; head < KV; head++)
                    variants[v]->store(&a, head, 0, a.n_rows);
                for (size_t head = 0; head < HEADS; head += at_once)
                    variants[v]->attend(&a, head, at_once, 0, a.n_rows, scratch);
            }
            free(scratch);
            if (memcmp(out[0], out[1], sizeof(float) * a.n_rows * HEADS * HD) != 0) {
                printf("attention %s differs from the reference in round %d\n", names[which], round);
                return 1;
            }
            add_to_digest(out[1], a.n_rows * HEADS * HD);
            move_cell(&a);
        }
        printf("attention %-6s %d rounds equal the reference, digest %016llx\n", names[which], rounds,
               (unsigned long long)digest);
    }
    if (n_variants == 0)
        printf("attention has no variant but the reference here\n");
    return n_variants == 0;
}
