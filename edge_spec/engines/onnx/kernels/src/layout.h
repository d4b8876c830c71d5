/* The packed layout of a quantised matrix: what is where, and how large.
 *
 * A packed matrix is one array of bytes, little endian:
 *
 *     0   8 bytes   "EDGEROWS"
 *     8   u32       version of the layout, 1
 *     12  u32       kind, numbered as tensor types are in GGUF
 *     16  u64       n_out, rows of the matrix = outputs
 *     24  u64       n_in, columns of the matrix = inputs; a multiple of 32, of 256 for the kinds named _K
 *     32  u64       bytes of the whole array, this header included
 *     40  24 bytes  zero, so that the groups start at 64
 *     64            groups of 16 outputs; outputs missing in the last group have zero scales
 *
 * A group is a run of units in the order of the inputs. A unit is a head and then 1 block (8 blocks for the
 * kinds named _K); a block holds 16 outputs x 32 inputs:
 *
 *     kind   head                       block                                         bits per weight   GGUF's
 *     Q4_0   d f16[16]                  codes 4                                       4.5      4.5
 *     Q4_1   d f16[16], m f16[16]       codes 4                                       5        5
 *     Q5_0   d f16[16]                  codes 5                                       5.5      5.5
 *     Q5_1   d f16[16], m f16[16]       codes 5                                       6        6
 *     Q8_0   d f16[16]                  codes 8                                       8.5      8.5
 *     Q4_K   d f16[16], dmin f16[16]    scale u8[16], min u8[16], codes 4             4.625    4.5
 *     Q5_K   d f16[16], dmin f16[16]    scale u8[16], min u8[16], codes 5             5.625    5.5
 *     Q6_K   d f16[16]                  scale i8[16] x 2 (16 inputs each), codes 6    6.5625   6.5625
 *
 * Codes are unsigned. In a block, input i belongs to quad j = i / 4, and output o with input i to lane
 * 4 * o + i % 4, so that the 64 lanes of a quad are one 512-bit register (or two of 256, or four of 128 bits):
 *
 *     codes 4   u8[4][64]: byte [j / 2][lane], low half for even j, high half for odd j
 *     codes 5   codes 4, then u8[64]: bit j of byte [lane] is bit 4 of the code
 *     codes 6   codes 4, then u8[2][64]: bits 2 * (j % 4) and up of byte [j / 4][lane] are bits 4 and 5
 *     codes 8   u8[8][64]: byte [j][lane]
 *
 * A weight is d * (code - offset) with offset 8, 16, 128 for Q4_0, Q5_0, Q8_0; d * code + m for Q4_1, Q5_1;
 * (d * scale) * code - dmin * min for Q4_K, Q5_K; (d * scale) * (code - 32) for Q6_K. No value is rounded on
 * the way from GGUF: a packed matrix has exactly the same weights.
 */
#ifndef EDGE_ROWS_LAYOUT_H
#define EDGE_ROWS_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the packed layout is read in place and is little endian"
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define ER_INLINE static __forceinline
#else
#define ER_INLINE static inline __attribute__((always_inline, unused))
#endif

enum {
    ER_VERSION = 1,
    ER_HEADER_BYTES = 64,
    ER_GROUP = 16,       /* outputs per group */
    ER_BLOCK = 32,       /* inputs per block */
    ER_UNIT_BLOCKS = 8,  /* the most blocks in a unit; inputs are split between passes only at multiples */
};

typedef enum {
    ER_Q4_0 = 2,
    ER_Q4_1 = 3,
    ER_Q5_0 = 6,
    ER_Q5_1 = 7,
    ER_Q8_0 = 8,
    ER_Q4_K = 12,
    ER_Q5_K = 13,
    ER_Q6_K = 14,
} er_kind;

/* How a kind turns whole-number sums into an output, see rows.h. */
typedef enum { ER_OFFSET, ER_MINIMUM, ER_HALVES } er_form;

/* The functions below are called with constants wherever speed matters, so that they cost nothing. */

ER_INLINE er_form er_form_of(er_kind kind) {
    return kind == ER_Q6_K                                        ? ER_HALVES
           : kind == ER_Q4_0 || kind == ER_Q5_0 || kind == ER_Q8_0 ? ER_OFFSET
                                                                  : ER_MINIMUM;
}

ER_INLINE int er_code_bits(er_kind kind) {
    return kind == ER_Q8_0                                          ? 8
           : kind == ER_Q6_K                                        ? 6
           : kind == ER_Q5_0 || kind == ER_Q5_1 || kind == ER_Q5_K  ? 5
                                                                    : 4;
}

ER_INLINE int er_code_offset(er_kind kind) {
    return kind == ER_Q4_0 ? 8 : kind == ER_Q5_0 ? 16 : kind == ER_Q6_K ? 32 : kind == ER_Q8_0 ? 128 : 0;
}

/* Whether the head's scales are multiplied by whole numbers of their own for every block. */
ER_INLINE bool er_has_subscales(er_kind kind) { return kind >= ER_Q4_K; }

ER_INLINE int er_unit_blocks(er_kind kind) { return er_has_subscales(kind) ? ER_UNIT_BLOCKS : 1; }

ER_INLINE int er_head_bytes(er_kind kind) { return er_form_of(kind) == ER_MINIMUM ? 64 : 32; }

ER_INLINE int er_block_bytes(er_kind kind) {
    return (er_has_subscales(kind) ? 32 : 0) + 64 * er_code_bits(kind);
}

ER_INLINE int er_unit_bytes(er_kind kind) {
    return er_head_bytes(kind) + er_unit_blocks(kind) * er_block_bytes(kind);
}

/* A packed matrix whose header has been checked. Everything inside `bytes` may be read, whatever it holds. */
typedef struct {
    const uint8_t *groups;
    er_kind kind;
    size_t n_out, n_in;
    size_t n_groups, n_blocks; /* n_blocks: per group */
    size_t group_bytes;
} er_matrix;

/* Reads the header. Returns NULL, or what is wrong with it as a static string; then *matrix is not set. */
const char *er_open(const void *packed, size_t n_bytes, er_matrix *matrix);

/* The values of output `row`, n_in floats, rounded as GGUF's own dequantisation rounds. row < n_out. */
void er_weights(const er_matrix *matrix, size_t row, float *values);

#endif
