/* Activations as 8-bit whole numbers, 32 at a time; where weights are floats, activations stay as they are.
 *
 * For every 32 floats x of a row, with `largest` the largest magnitude among them:
 *
 *     scale = largest / 127             (rounded to nearest)
 *     q     = x * (127 / largest)       (both rounded to nearest), then to the nearest whole number, halves to even
 *
 * Blocks whose largest magnitude is below 2^-100 count as zero: 127 / largest would leave the range. A block that
 * holds an infinity or a NaN has q = 0 and a NaN as its scale, so the row's outputs are NaN and no other row is
 * touched. Everything here is one rounded operation at a time, so every compiler and CPU gets the same bits.
 *
 * Rows that are multiplied together are interleaved, so that a kernel walks them with one pointer. For a tile of
 * n rows every block is
 *
 *     q i8[n][32], scale f32[n], first 4 bytes[n], second 4 bytes[n]
 *
 * where `first` and `second` depend on the form of the kind: ER_OFFSET: -offset * sum of q (i32), unused.
 * ER_MINIMUM: scale * sum of q (f32), unused. ER_HALVES: -offset * sum of q over each half (i32, i32).
 * ER_MINIMA: scale * sum of q over each half (f32, f32). ER_PLAIN: a block is f32[n], one input of each row.
 */
#ifndef EDGE_ROWS_ACTIVATIONS_H
#define EDGE_ROWS_ACTIVATIONS_H

#include <string.h>

#include "half.h"

enum {
    ER_TILE_ROWS = 16,              /* the most rows in a tile */
    ER_ACTIVATION_BYTES = 32 + 12,  /* per row and block of a quantized kind; a multiple of 4 */
};

#define ER_QUIET_NAN 0x7fc00000u
#define ER_SMALLEST 0x0d800000u /* 2^-100 */

typedef struct {
    float scale;
    int32_t sum[2]; /* of q over the first and the second 16 */
} er_quantized;

/* What quantizing 32 values x into q[32] has to give. */
typedef er_quantized (*er_block_quantizer)(const float *x, int8_t *q);

/* The part that no CPU does faster: from the bits of the largest magnitude to 127 / largest; false if q is zero. */
ER_INLINE bool er_scale_of(int32_t largest, er_quantized *block, float *inverse) {
    *block = (er_quantized){0.0f, {0, 0}};
    if (largest < (int32_t)ER_SMALLEST || largest >= 0x7f800000) {
        block->scale = largest < 0x7f800000 ? 0.0f : er_float_of_bits(ER_QUIET_NAN);
        return false;
    }
    block->scale = er_float_of_bits((uint32_t)largest) / 127.0f;
    *inverse = 127.0f / er_float_of_bits((uint32_t)largest);
    return true;
}

ER_INLINE er_quantized er_quantize_block(const float *x, int8_t *q) {
    int32_t bits[ER_BLOCK], largest = 0;
    er_quantized block;
    float inverse;
    memcpy(bits, x, sizeof bits);
    for (int i = 0; i < ER_BLOCK; i++) { /* magnitudes compare as whole numbers */
        const int32_t magnitude = bits[i] & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (!er_scale_of(largest, &block, &inverse)) {
        memset(q, 0, ER_BLOCK);
        return block;
    }
    for (int i = 0; i < ER_BLOCK; i++) {
        /* Adding 1.5 * 2^23 rounds to a whole number, half to even, and leaves it in the low bits. */
        const float shifted = x[i] * inverse + 0x1.8p23f;
        int32_t whole;
        memcpy(&whole, &shifted, sizeof whole);
        q[i] = (int8_t)(whole - 0x4b400000);
        block.sum[i / 16] += q[i];
    }
    return block;
}

ER_INLINE int er_activation_bytes(er_kind kind) { return er_is_plain(kind) ? 4 : ER_ACTIVATION_BYTES; }

/* One tile: rows of x (`stride` floats apart) into n_rows * n_blocks * er_activation_bytes(kind) bytes. */
ER_INLINE void er_quantize_tile(er_block_quantizer quantize_block, er_kind kind, const float *x, size_t stride,
                                int n_rows, size_t n_blocks, uint8_t *tile) {
    const int32_t offset = er_traits_of(kind).offset;
    const er_form form = er_form_of(kind);
    if (form == ER_PLAIN) {
        for (int r = 0; r < n_rows; r++)
            for (size_t i = 0; i < n_blocks; i++)
                memcpy(tile + 4 * (i * (size_t)n_rows + (size_t)r), x + (size_t)r * stride + i, 4);
        return;
    }
    for (size_t b = 0; b < n_blocks; b++, tile += ER_ACTIVATION_BYTES * n_rows) {
        uint8_t *scales = tile + 32 * n_rows, *firsts = scales + 4 * n_rows, *seconds = firsts + 4 * n_rows;
        for (int r = 0; r < n_rows; r++) {
            const er_quantized block =
                quantize_block(x + (size_t)r * stride + b * ER_BLOCK, (int8_t *)tile + 32 * r);
            const int32_t sum = block.sum[0] + block.sum[1];
            int32_t first = -offset * (form == ER_HALVES ? block.sum[0] : sum), second = -offset * block.sum[1];
            if (er_has_minima(kind)) {
                const float weighted = block.scale * (float)(form == ER_MINIMA ? block.sum[0] : sum);
                const float weighted1 = block.scale * (float)block.sum[1];
                memcpy(&first, &weighted, sizeof first);
                memcpy(&second, &weighted1, sizeof second);
            }
            memcpy(scales + 4 * r, &block.scale, 4);
            memcpy(firsts + 4 * r, &first, 4);
            memcpy(seconds + 4 * r, &second, 4);
        }
    }
}

#endif
