/* Rows of floats in 8 bits, 32 numbers with a scale of 16 bits: what a pool keeps of each cell for a head.
 *
 * A row is rounded as soon as it is computed, alone: what a head reads depends on no other row. Numbers beyond 65000
 * count as that, and a block that holds an infinity or a NaN as zero.
 */
#include "export.h"
#include "half.h"

static void er_keep_block(const float *x, int8_t *codes, uint8_t *scale) {
    int32_t bits[ER_FEATURES], largest = 0;
    memcpy(bits, x, sizeof bits);
    for (size_t i = 0; i < ER_FEATURES; i++) {
        const int32_t size = bits[i] & 0x7fffffff;
        largest = size > largest ? size : largest;
    }
    const bool is_finite = largest < 0x7f800000;
    const float most = is_finite ? er_float_of_bits((uint32_t)largest) : 0.0f;
    const uint16_t half = er_to_half((most < 65000.0f ? most : 65000.0f) / 127.0f);
    memcpy(scale, &half, sizeof half);
    if (half == 0) {
        memset(codes, 0, ER_FEATURES);
        return;
    }
    const float inverse = 1.0f / er_half(scale);
    for (size_t i = 0; i < ER_FEATURES; i++) {
        /* Of a small scale, which is rounded, the largest code may be beyond 127. */
        float code = x[i] * inverse;
        code = code < 127.0f ? code : 127.0f;
        code = code > -127.0f ? code : -127.0f;
        codes[i] = (int8_t)(int32_t)(code + 0x1.8p23f - 0x1.8p23f); /* to the nearest whole number */
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

/* The rows of some cells, as f32 [n, 32 * n_blocks]. */
ER_EXPORT void edge_rows_read_features(float *rows, const int64_t *cells, size_t n, size_t n_blocks,
                                       const int8_t *codes, const uint8_t *scales) {
    for (size_t row = 0; row < n; row++)
        for (size_t block = 0; block < n_blocks; block++) {
            const size_t from = (size_t)cells[row] * n_blocks + block;
            const float scale = er_half(scales + 2 * from);
            float *x = rows + (row * n_blocks + block) * ER_FEATURES;
            for (size_t i = 0; i < ER_FEATURES; i++)
                x[i] = (float)codes[from * ER_FEATURES + i] * scale;
        }
}
