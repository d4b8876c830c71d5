/* Draws of many rows by many settings, without Python: a digest of the ids that can be drawn and of the one that is,
 * to compare machines by. Scores are not part of it: exp and log of two C libraries differ in their last bits. Every
 * row lies in memory of exactly its size, so that a sanitizer sees any step outside. Exit status 1 if a draw names an
 * id that is not in its row, or one twice. With a number as argument: that many rows.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "digest.h"
#include "random.h"

enum { FEW = 96 };

struct draw_settings {
    int64_t top_k;
    double top_p, temperature, deepest;
};

struct changes {
    int64_t n;
    int32_t columns[FEW];
    float amounts[FEW];
};

struct asked {
    const float *logits;
    int64_t n;
    uint64_t stream;
    int64_t index;
    const struct changes *changes;
    const int64_t *tokens;
    const struct draw_settings *settings;
};

struct found {
    int64_t id;
    double chance;
};

int32_t edge_pick_3(const struct asked *asked);
void edge_guess_2(int64_t n_rows, const struct asked *rows, int64_t most, struct found *found);

static void put(uint32_t number) { add_to_digest(&number, 1); }

/* Sums of numbers that any machine computes alike, about as logits are spread; some rows with ties and infinities. */
static float *random_row(int64_t n, uint32_t kind) {
    float *row = malloc((size_t)n * sizeof *row);
    for (int64_t i = 0; i < n; i++) {
        int32_t sum = 0;
        for (int part = 0; part < 4; part++) sum += (int32_t)(next() >> 16) - 32768;
        row[i] = kind % 5 ? (float)sum / 8192 : (float)(sum / 8192);
        if (kind % 7 == 0 && next() % 3 == 0) row[i] = -INFINITY;
    }
    return row;
}

int main(int argc, char **argv) {
    static const int64_t widths[] = {1, 2, 5, 40, 63, 64, 65, 300, 1000, 8192, 20000};
    static const int64_t top_k[] = {0, 1, 5, 40, 100};
    static const double top_p[] = {0.3, 0.9, 0.95, 1}, temperature[] = {0, 0.2, 0.7, 1, 1.5};
    static const double deepest[] = {3, 7, INFINITY};
    const uint32_t n_rows = argc > 1 ? (uint32_t)atoi(argv[1]) : 1000;
    uint32_t n_drawn = 0;
    restart(1);
    begin_digest();
    for (uint32_t number = 0; number < n_rows; number++) {
        const int64_t n = widths[below(11)];
        float *row = random_row(n, (uint32_t)settings_of((int)number));
        const struct draw_settings settings = {top_k[below(5)], top_p[below(4)], temperature[below(5)],
                                               deepest[below(3)]};
        struct changes changes = {.n = below(FEW + 1)};
        for (int64_t i = 0; i < changes.n; i++) {
            changes.columns[i] = (int32_t)below((uint32_t)n);
            changes.amounts[i] = i % 5 ? (float)below(9) - 4 : -INFINITY;
        }
        const struct asked plain = {row, n, (uint64_t)next() << 32 | next(), below(1000), NULL, NULL, &settings};
        struct asked rows[2] = {plain, plain};
        rows[1].changes = &changes;
        /* Each row's guesses in memory of exactly their size: none may reach the next row's. */
        const int64_t most = 1 + below(FEW);
        struct found *found = malloc(2 * (size_t)most * sizeof *found);
        edge_guess_2(2, rows, most, found);
        for (int which = 0; which < 2; which++) {
            const struct found *of = found + which * most;
            int64_t n_left = 0;
            while (n_left < most && of[n_left].id >= 0) n_left++;
            put((uint32_t)n_left);
            for (int64_t i = 0; i < n_left; i++) {
                if (of[i].id >= n) return printf("row %u: id %d of %d\n", number, (int)of[i].id, (int)n), 1;
                for (int64_t other = 0; other < i; other++)
                    if (of[other].id == of[i].id) return printf("row %u: id %d twice\n", number, (int)of[i].id), 1;
                put((uint32_t)of[i].id);
                if (!(of[i].chance >= 0 && of[i].chance <= (i ? of[i - 1].chance : 1)))
                    return printf("row %u: chance %d of %g\n", number, (int)i, of[i].chance), 1;
            }
            if (!which && n_left) n_drawn++;
            const int32_t picked = edge_pick_3(&rows[which]);
            if (picked != (n_left ? of[0].id : -1) && settings.temperature > 0)
                return printf("row %u: picked %d\n", number, picked), 1;
            put((uint32_t)picked);
        }
        free(found);
        free(row);
    }
    printf("draw: %u of %u rows, digest %016llx\n", n_drawn, n_rows, (unsigned long long)digest);
    return 0;
}
