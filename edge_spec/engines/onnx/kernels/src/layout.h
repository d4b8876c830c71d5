/* The packed layout of a matrix: what is where, and how large.
 *
 * A packed matrix is one array of bytes, little endian:
 *
 *     0   8 bytes   "EDGEROWS"
 *     8   u32       version of the layout, 1
 *     12  u32       kind, numbered as tensor types are in GGUF
 *     16  u64       n_out, rows of the matrix = outputs
 *     24  u64       n_in, columns of the matrix = inputs; of quantized kinds a multiple of 32, or of 256 where a unit
 *                   has 8 blocks
 *     32  u64       bytes of the whole array, this header included
 *     40  24 bytes  zero, so that the groups start at 64
 *     64            groups of 16 outputs; outputs missing in the last group have zero scales
 *
 * A group is a run of units in the order of the inputs. Of matrices of floats a unit is one input: 16 numbers of the
 * kind, one of each output. Of quantized ones it is a head and then 1 block, or 8 blocks where there are sub-scales;
 * a block holds 16 outputs x 32 inputs:
 *
 *     kind     head                       block                                             bits per weight   GGUF's
 *     Q4_0     d f16[16]                  codes 4                                           4.5      4.5
 *     Q4_1     d f16[16], m f16[16]       codes 4                                           5        5
 *     Q5_0     d f16[16]                  codes 5                                           5.5      5.5
 *     Q5_1     d f16[16], m f16[16]       codes 5                                           6        6
 *     Q8_0     d f16[16]                  codes 8                                           8.5      8.5
 *     IQ4_NL   d f16[16]                  codes 4                                           4.5      4.5
 *     MXFP4    d bf16[16]                 codes 4                                           4.5      4.25
 *     Q2_K     d f16[16], dmin f16[16]    scale and min u4[16] x 2 (16 inputs), codes 2     2.625    2.625
 *     Q3_K     d f16[16]                  scale i8[16] x 2 (16 inputs each), codes 3        3.5625   3.4375
 *     Q4_K     d f16[16], dmin f16[16]    scale u8[16], min u8[16], codes 4                 4.625    4.5
 *     Q5_K     d f16[16], dmin f16[16]    scale u8[16], min u8[16], codes 5                 5.625    5.5
 *     Q6_K     d f16[16]                  scale i8[16] x 2 (16 inputs each), codes 6        6.5625   6.5625
 *     IQ4_XS   d f16[16]                  scale i8[16], codes 4                             4.3125   4.25
 *
 * A scale and a min of 4 bits share a byte, the scale below. The scale of MXFP4 is a power of two, with more
 * exponents than f16 has.
 *
 * Codes are unsigned. In a block, input i belongs to quad j = i / 4, and output o with input i to lane
 * 4 * o + i % 4, so that the 64 lanes of a quad are one 512-bit register (or two of 256, or four of 128 bits):
 *
 *     codes 2   u8[2][64]: bits 2 * (j % 4) and up of byte [j / 4][lane]
 *     codes 3   codes 2, then u8[64]: bit j of byte [lane] is bit 2 of the code
 *     codes 4   u8[4][64]: byte [j / 2][lane], low half for even j, high half for odd j
 *     codes 5   codes 4, then u8[64]: bit j of byte [lane] is bit 4 of the code
 *     codes 6   codes 4, then u8[2][64]: bits 2 * (j % 4) and up of byte [j / 4][lane] are bits 4 and 5
 *     codes 8   u8[8][64]: byte [j][lane]
 *
 * A weight is d * (code - offset) with offset 8, 16, 128 for Q4_0, Q5_0, Q8_0; d * code + m for Q4_1, Q5_1;
 * (d * scale) * code - dmin * min for Q2_K, Q4_K, Q5_K; (d * scale) * (code - offset) with offset 4, 32 for Q3_K, Q6_K;
 * d * (number - 128) for IQ4_NL, (d * scale) * (number - 128) for IQ4_XS and d * (number - 12) for MXFP4, where a
 * table has the number of a code. No value is rounded on the way from GGUF: a packed matrix has exactly the same weights.
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
    ER_BLOCK = 32,       /* inputs per block of a quantized kind */
    ER_UNIT_BLOCKS = 8,  /* the most blocks in a unit; inputs are split between passes only at multiples */
};

typedef enum {
    ER_F32 = 0,
    ER_F16 = 1,
    ER_Q4_0 = 2,
    ER_Q4_1 = 3,
    ER_Q5_0 = 6,
    ER_Q5_1 = 7,
    ER_Q8_0 = 8,
    ER_Q2_K = 10,
    ER_Q3_K = 11,
    ER_Q4_K = 12,
    ER_Q5_K = 13,
    ER_Q6_K = 14,
    ER_IQ4_NL = 20,
    ER_IQ4_XS = 23,
    ER_BF16 = 30,
    ER_MXFP4 = 39,
} er_kind;

/* How a kind makes an output, see rows.h. */
typedef enum { ER_PLAIN, ER_OFFSET, ER_MINIMUM, ER_HALVES, ER_MINIMA } er_form;

/* The functions below are called with constants wherever speed matters, so that they cost nothing. */

ER_INLINE bool er_is_plain(er_kind kind) { return kind == ER_F32 || kind == ER_F16 || kind == ER_BF16; }

/* Whether codes are places in a table. */
ER_INLINE bool er_has_table(er_kind kind) { return kind == ER_IQ4_NL || kind == ER_IQ4_XS || kind == ER_MXFP4; }

ER_INLINE er_form er_form_of(er_kind kind) {
    return er_is_plain(kind)                                                        ? ER_PLAIN
           : kind == ER_Q6_K || kind == ER_Q3_K                                     ? ER_HALVES
           : kind == ER_Q4_0 || kind == ER_Q5_0 || kind == ER_Q8_0 || er_has_table(kind) ? ER_OFFSET
           : kind == ER_Q2_K                                                        ? ER_MINIMA
                                                                                    : ER_MINIMUM;
}

ER_INLINE bool er_has_minima(er_kind kind) {
    return er_form_of(kind) == ER_MINIMUM || er_form_of(kind) == ER_MINIMA;
}

ER_INLINE int er_code_bits(er_kind kind) {
    return kind == ER_Q8_0                                          ? 8
           : kind == ER_Q6_K                                        ? 6
           : kind == ER_Q5_0 || kind == ER_Q5_1 || kind == ER_Q5_K  ? 5
           : kind == ER_Q3_K                                        ? 3
           : kind == ER_Q2_K                                        ? 2
                                                                    : 4;
}

/* Of what is multiplied: codes, or the numbers that a table has for them. */
ER_INLINE int er_number_bits(er_kind kind) {
    return !er_has_table(kind) ? er_code_bits(kind) : kind == ER_MXFP4 ? 5 : 8;
}

ER_INLINE int er_code_offset(er_kind kind) {
    return kind == ER_Q4_0                         ? 8
           : kind == ER_MXFP4                      ? 12
           : kind == ER_Q5_0                       ? 16
           : kind == ER_Q6_K                       ? 32
           : kind == ER_Q8_0 || er_has_table(kind) ? 128
           : kind == ER_Q3_K                       ? 4
                                                   : 0;
}

/* The numbers of 16 codes. They are those of ggml's kvalues_iq4nl and 128 more, and of kvalues_mxfp4 and 12 more. */
ER_INLINE const uint8_t *er_table(er_kind kind) {
    static const uint8_t iq4[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
    static const uint8_t mxfp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    return kind == ER_MXFP4 ? mxfp4 : iq4;
}

/* Bytes per block of whole numbers that the head's scales are multiplied by. */
ER_INLINE int er_subscale_bytes(er_kind kind) {
    return kind == ER_IQ4_XS ? 16 : kind >= ER_Q2_K && kind <= ER_Q6_K ? 32 : 0;
}

ER_INLINE bool er_has_subscales(er_kind kind) { return er_subscale_bytes(kind) != 0; }

ER_INLINE int er_unit_blocks(er_kind kind) { return er_has_subscales(kind) ? ER_UNIT_BLOCKS : 1; }

ER_INLINE int er_block_inputs(er_kind kind) { return er_is_plain(kind) ? 1 : ER_BLOCK; }

ER_INLINE int er_head_bytes(er_kind kind) { return er_is_plain(kind) ? 0 : er_has_minima(kind) ? 64 : 32; }

ER_INLINE int er_block_bytes(er_kind kind) {
    if (er_is_plain(kind))
        return ER_GROUP * (kind == ER_F32 ? 4 : 2);
    return er_subscale_bytes(kind) + 64 * er_code_bits(kind);
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

/* The values of output `row`, n_in floats, rounded as GGUF's own dequantization rounds. row < n_out. */
void er_weights(const er_matrix *matrix, size_t row, float *values);

#endif
