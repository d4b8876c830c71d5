/* Rows of floats in 8 bits, 32 numbers with a scale of 16 bits: what a pool keeps of each cell for a head.
 *
 * A row is rounded as soon as it is computed, alone: what a head reads depends on no other row. Numbers beyond 65000
 * count as that, and a block that holds an infinity or a NaN as zero.
 */
#include <math.h>

#include "export.h"
#include "half.h"

enum { ER_FEATURES = 32 };

static void er_keep_block(const float *x, int8_t *codes, uint8_t *scale) {
    float largest = 0.0f;
    bool is_finite = true;
    for (size_t i = 0; i < ER_FEATURES; i++) {
        const float size = fabsf(x[i]);
        is_finite &= size < INFINITY;
        largest = size > largest ? size : largest;
    }
    largest = largest < 65000.0f ? largest : 65000.0f;
    const uint16_t half = is_finite ? er_to_half(largest / 127.0f) : 0;
    memcpy(scale, &half, sizeof half);
    const float size = er_half(scale), inverse = size > 0.0f ? 1.0f / size : 0.0f;
    for (size_t i = 0; i < ER_FEATURES; i++) {
        /* Of a small scale, which is rounded, the largest code may be beyond 127. */
        const float code = is_finite ? x[i] * inverse : 0.0f;
        codes[i] = (int8_t)rintf(fminf(fmaxf(code, -127.0f), 127.0f));
    }
}

/* Round rows and put them into their cells.
 *
 * rows: f32 [n, 32 * n_blocks]
 * cells: [n]
 * codes: i8 [all cells, 32 * n_blocks]; scales: f16 [all cells, n_blocks]
 */
ER_EXPORT void edge_rows_keep_features(const float *rows, const int64_t *cells, size_t n, size_t n_blocks,
                                       int8_t *codes, uint8_t *scales) {
    for (size_t row = 0; row < n; row++)
        for (size_t block = 0; block < n_blocks; block++) {
            const size_t to = (size_t)cells[row] * n_blocks + block;
            er_keep_block(rows + (row * n_blocks + block) * ER_FEATURES, codes + to * ER_FEATURES, scales + 2 * to);
        }
}
