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
 * kind, one of each output. Of quantized ones it is a head, d[16] and then m[16] where there are minima, and the blocks
 * of one block of GGUF; a block holds 16 outputs x 32 inputs: its sub-scales, if there are any, and codes. The table in
 * shared.h says for each kind what its scales, sub-scales and codes are. All scales and minima of heads are f16; only
 * those of MXFP4 are bf16: they are powers of two, with more exponents than f16 has.
 *
 * A scale and a min of 4 bits share a byte, the scale below.
 *
 * Codes are unsigned. In a block, input i belongs to quad j = i / 4, and output o with input i to lane
 * 4 * o + i % 4, so that the 64 lanes of a quad are one 512-bit register (or two of 256, or four of 128 bits):
 *
 *     codes 1   u8[64]: bit j of byte [lane]; it counts 2
 *     codes 2   u8[2][64]: bits 2 * (j % 4) and up of byte [j / 4][lane]
 *     codes 4   u8[4][64]: bits 4 * (j % 2) and up of byte [j / 2][lane]
 *     codes 8   u8[8][64]: byte [j][lane]
 *
 * Codes of 3, 5 and 6 bits are in two parts like these: their lowest 2 or 4 bits, then the others.
 *
 * With d and m multiplied by the sub-scales, and m then negative, a weight is d * (number - offset) + m, where the number
 * is the code or what a table has for it. No value is rounded on the way from GGUF: a packed matrix has exactly the same
 * weights.
 */
#ifndef EDGE_ROWS_LAYOUT_H
#define EDGE_ROWS_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the packed layout is read in place and is little endian"
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define ER_INLINE static __forceinline
#else
#define ER_INLINE static inline __attribute__((always_inline, unused))
#endif

enum { ER_UNIT_BLOCKS = 8 }; /* the most blocks in a unit; inputs are split between passes only at multiples */

typedef enum {
#define ER_NUMBER(name, number, ...) ER_##name = number,
    ER_KINDS(ER_NUMBER)
} er_kind;

/* How a kind makes an output, see rows.h. */
typedef enum { ER_PLAIN, ER_OFFSET, ER_MINIMUM, ER_HALVES, ER_MINIMA } er_form;

/* The numbers of 16 codes. They are those of ggml's kvalues_iq4nl and 128 more, and of kvalues_mxfp4 and 12 more. */
static const uint8_t er_iq4[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
static const uint8_t er_mxfp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* A row of the table in shared.h. This and the functions below are called with constants wherever speed matters, so that
 * they cost nothing. */
typedef struct {
    er_form form;
    int bits, numbers, offset;
    er_kind scales;
    int subscales, blocks;
    const uint8_t *table;
} er_traits;

ER_INLINE er_traits er_traits_of(er_kind kind) {
#define ER_TRAITS(name, number, form_, bits_, numbers_, offset_, scales_, subscales_, blocks_, table_)                 \
    case ER_##name: return (er_traits){ER_##form_, bits_, numbers_, offset_, ER_##scales_, subscales_, blocks_, table_};
    switch (kind) { ER_KINDS(ER_TRAITS) }
    return (er_traits){.bits = 0}; /* no kind */
}

ER_INLINE er_form er_form_of(er_kind kind) { return er_traits_of(kind).form; }

ER_INLINE bool er_is_plain(er_kind kind) { return er_form_of(kind) == ER_PLAIN; }

ER_INLINE bool er_has_minima(er_kind kind) {
    return er_form_of(kind) == ER_MINIMUM || er_form_of(kind) == ER_MINIMA;
}

ER_INLINE int er_code_bits(er_kind kind) { return er_traits_of(kind).bits; }

/* Of a code, in the first of its parts. */
ER_INLINE int er_low_bits(er_kind kind) {
    const int bits = er_code_bits(kind);
    return bits >= 8 ? 8 : bits >= 4 ? 4 : bits >= 2 ? 2 : 1;
}

ER_INLINE int er_number_bits(er_kind kind) { return er_traits_of(kind).numbers; }

ER_INLINE const uint8_t *er_table(er_kind kind) { return er_traits_of(kind).table; }

ER_INLINE int er_subscale_bytes(er_kind kind) { return er_traits_of(kind).subscales; }

ER_INLINE int er_unit_blocks(er_kind kind) { return er_traits_of(kind).blocks; }

ER_INLINE int er_block_inputs(er_kind kind) { return er_is_plain(kind) ? 1 : ER_BLOCK; }

ER_INLINE int er_head_bytes(er_kind kind) { return er_is_plain(kind) ? 0 : er_has_minima(kind) ? 64 : 32; }

ER_INLINE int er_block_bytes(er_kind kind) {
    return er_subscale_bytes(kind) + (er_is_plain(kind) ? ER_GROUP / 8 : 2 * ER_BLOCK) * er_code_bits(kind);
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
