/* 128-bit registers of 64-bit Arm: four outputs at a time.
 *
 * The file that includes this defines VARIANT, VARIANT_NAME and RUNS_HERE and chooses the instruction set. With PAIRS,
 * two rows at a time use 2 x 2 x 8 matrix products; a lone row, and every row without PAIRS, uses dot products with
 * DOT_PRODUCTS, which PAIRS needs. Without either, products go through 16 bits, in chains as long as the codes' range
 * allows.
 */
#include "rows.h"
#include "vectors_neon.h"

enum { QUARTER_GROUP = 4, AHEAD_BYTES = 1152 };

ER_INLINE float32x4_t bfloats(const uint8_t *at) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8(at))), 16));
}

#define FLOAT_ROWS 4
#define FLOAT_GROUPS(rows) ((rows) == 1 ? 4 : (rows) == 2 ? 2 : 1)
#define LOAD_BFLOAT(at) bfloats(at)
#define SETTLED(x) vbslq_f32(vceqq_f32(x, x), x, vreinterpretq_f32_u32(vdupq_n_u32(ER_QUIET_NAN)))
#include "floats.h"

ER_INLINE er_quantized quantize_block(const float *x, int8_t *q) {
    const int32x4_t magnitude = vdupq_n_s32(0x7fffffff);
    float32x4_t values[8];
    int32x4_t largest = vdupq_n_s32(0);
    ER_UNROLL for (int i = 0; i < 8; i++) {
        values[i] = vld1q_f32(x + 4 * i);
        largest = vmaxq_s32(largest, vandq_s32(vreinterpretq_s32_f32(values[i]), magnitude));
    }
    er_quantized block;
    float inverse;
    if (!er_scale_of(vmaxvq_s32(largest), &block, &inverse)) {
        memset(q, 0, ER_BLOCK);
        return block;
    }
    ER_UNROLL for (int half = 0; half < 2; half++) {
        int16x4_t narrow[4];
        ER_UNROLL for (int i = 0; i < 4; i++) /* rounds half to even, as the reference does */
            narrow[i] = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(values[4 * half + i], inverse)));
        const int8x16_t whole = vcombine_s8(vmovn_s16(vcombine_s16(narrow[0], narrow[1])),
                                            vmovn_s16(vcombine_s16(narrow[2], narrow[3])));
        vst1q_s8(q + 16 * half, whole);
        block.sum[half] = vaddlvq_s8(whole);
    }
    return block;
}

/* Four bytes, as floats. */
ER_INLINE float32x4_t unsigned_bytes(const uint8_t *at) {
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32((uint32_t)er_load_i32(at)));
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}

/* The low and the high 4 bits of four bytes, as floats. */
ER_INLINE float32x4_t low_halves(const uint8_t *at) {
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32((uint32_t)er_load_i32(at) & 0x0f0f0f0fu));
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}

ER_INLINE float32x4_t high_halves(const uint8_t *at) {
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32((uint32_t)er_load_i32(at) >> 4 & 0x0f0f0f0fu));
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}

ER_INLINE float32x4_t signed_bytes(const uint8_t *at) {
    const int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32((uint32_t)er_load_i32(at)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}

/* A quarter of a quad. */
#define bytes uint8x16_t
#define LOAD_BYTES(at) vld1q_u8(at)
#define SET_BYTES(x) vdupq_n_u8((uint8_t)(x))
#define AND(a, b) vandq_u8(a, b)
#define OR(a, b) vorrq_u8(a, b)
#define RIGHT(x, n) ((x) >> (n))
#define LEFT(x, n) ((x) << (n))
#define BYTE_SHIFTS true
#define LOAD_TABLE(at) vld1q_u8(at)
#define LOOK_UP(table, places) vqtbl1q_u8(table, places)
#define SIGNED(x) veorq_u8(x, vdupq_n_u8(128)) /* 128 less */
#define NEGATED(x) vnegq_f32(x)
#include "blocks.h"

#ifdef DOT_PRODUCTS
/* Adds the products of four quads with 16 values of one row. */
ER_INLINE int32x4_t multiply_quads(int32x4_t sum, const bytes quads[4], const uint8_t *q) {
    const int8x16_t values = vreinterpretq_s8_u8(vld1q_u8(q));
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(quads[0]), values, 0);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(quads[1]), values, 1);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(quads[2]), values, 2);
    return vdotq_laneq_s32(sum, vreinterpretq_s8_u8(quads[3]), values, 3);
}

/* Adds the products of a block with a row: to sums[0], and to sums[1] those of its second half. */
ER_INLINE void multiply_row(er_kind kind, const bytes quads[8], const uint8_t *q, int32x4_t sums[2]) {
    (void)kind;
    sums[0] = multiply_quads(sums[0], quads, q);
    sums[1] = multiply_quads(sums[1], quads + 4, q + 16);
}
#else
/* Four of 16 values, four times. */
ER_INLINE int8x16_t four_of(int32x4_t values, int which) {
    switch (which) {
    case 0: return vreinterpretq_s8_s32(vdupq_laneq_s32(values, 0));
    case 1: return vreinterpretq_s8_s32(vdupq_laneq_s32(values, 1));
    case 2: return vreinterpretq_s8_s32(vdupq_laneq_s32(values, 2));
    default: return vreinterpretq_s8_s32(vdupq_laneq_s32(values, 3));
    }
}

/* Adds the products of a block with a row: to sums[0], and to sums[1] those of its second half where the halves have
 * scales of their own. */
ER_INLINE void multiply_row(er_kind kind, const bytes quads[8], const uint8_t *q, int32x4_t sums[2]) {
    /* A product is at most 127 * 31, 127 * 63 or 127 * 128: below 2^15 for 8, 4 and 2 of them. */
    const int bits = er_number_bits(kind), longest = bits <= 5 ? 8 : bits == 6 ? 4 : 2;
    const bool apart = er_form_of(kind) == ER_HALVES || er_form_of(kind) == ER_MINIMA;
    const int chain = apart && longest > 4 ? 4 : longest;
    const int32x4_t values[2] = {vreinterpretq_s32_u8(vld1q_u8(q)), vreinterpretq_s32_u8(vld1q_u8(q + 16))};
    int16x8_t low = vdupq_n_s16(0), high = low; /* of outputs 0 and 1, of outputs 2 and 3 */
    ER_UNROLL for (int j = 0; j < 8; j++) {
        const int8x16_t numbers = vreinterpretq_s8_u8(quads[j]), four = four_of(values[j / 4], j % 4);
        if (j % chain == 0) {
            low = vmull_s8(vget_low_s8(numbers), vget_low_s8(four));
            high = vmull_high_s8(numbers, four);
        } else {
            low = vmlal_s8(low, vget_low_s8(numbers), vget_low_s8(four));
            high = vmlal_high_s8(high, numbers, four);
        }
        if (j % chain == chain - 1) {
            const int32x4_t sum = vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
            int32x4_t *to = &sums[apart ? j / 4 : 0];
            *to = vaddq_s32(*to, sum);
        }
    }
}
#endif

/* What a row adds to a block besides the products of q. */
ER_INLINE int32x4_t start_of(er_kind kind, const uint8_t *activations, int rows, int r, int half) {
    const uint8_t *firsts = activations + 36 * rows;
    if (er_has_minima(kind) || er_number_bits(kind) == 8)
        return vdupq_n_s32(0);
    return vdupq_n_s32(er_load_i32(firsts + 4 * rows * half + 4 * r));
}

/* Turns the sums over the two halves of a block into an output. */
ER_INLINE float32x4_t add_sums(er_kind kind, int32x4_t sum0, int32x4_t sum1, const block_scales *s,
                               const uint8_t *activations, int rows, int r, float32x4_t acc) {
    const uint8_t *scales = activations + 32 * rows, *firsts = scales + 4 * rows;
    const float32x4_t scale = vdupq_n_f32(er_load_f32(scales + 4 * r));
    if (er_form_of(kind) == ER_HALVES || er_form_of(kind) == ER_MINIMA) {
        acc = vfmaq_f32(acc, vcvtq_f32_s32(sum0), vmulq_f32(s->d[0], scale));
        acc = vfmaq_f32(acc, vcvtq_f32_s32(sum1), vmulq_f32(s->d[1], scale));
        if (er_form_of(kind) == ER_HALVES)
            return acc;
        acc = vfmaq_f32(acc, s->m[0], vdupq_n_f32(er_load_f32(firsts + 4 * r)));
        return vfmaq_f32(acc, s->m[1], vdupq_n_f32(er_load_f32(firsts + 4 * rows + 4 * r)));
    }
    acc = vfmaq_f32(acc, vcvtq_f32_s32(vaddq_s32(sum0, sum1)), vmulq_f32(s->d[0], scale));
    if (er_form_of(kind) == ER_MINIMUM)
        acc = vfmaq_f32(acc, s->d[1], vdupq_n_f32(er_load_f32(firsts + 4 * r)));
    return acc;
}

ER_INLINE float32x4_t add_row(er_kind kind, const bytes quads[8], const block_scales *s,
                              const uint8_t *activations, int rows, int r, float32x4_t acc) {
    const uint8_t *q = activations + 32 * r;
    int32x4_t sums[2] = {start_of(kind, activations, rows, r, 0), vdupq_n_s32(0)};
    if (er_form_of(kind) == ER_HALVES)
        sums[1] = start_of(kind, activations, rows, r, 1);
    multiply_row(kind, quads, q, sums);
    return add_sums(kind, sums[0], sums[1], s, activations, rows, r, acc);
}

#ifdef PAIRS
/* Sums of [output 0 or 1] x [row 0 or 1] and of outputs 2, 3; two inputs quads = eight inputs at a time. */
ER_INLINE void multiply_pairs(int32x4_t sums[2], const bytes quads[4], const uint8_t *q) {
    ER_UNROLL for (int j = 0; j < 4; j += 2) {
        const int32x4_t even = vreinterpretq_s32_u8(quads[j]), odd = vreinterpretq_s32_u8(quads[j + 1]);
        const int8x16_t rows = vreinterpretq_s8_u8(vcombine_u8(vld1_u8(q + 4 * j), vld1_u8(q + 32 + 4 * j)));
        sums[0] = vmmlaq_s32(sums[0], vreinterpretq_s8_s32(vzip1q_s32(even, odd)), rows);
        sums[1] = vmmlaq_s32(sums[1], vreinterpretq_s8_s32(vzip2q_s32(even, odd)), rows);
    }
}

ER_INLINE void add_two_rows(er_kind kind, const bytes quads[8], const block_scales *s,
                            const uint8_t *activations, int rows, int r, float32x4_t acc[2]) {
    const uint8_t *q = activations + 32 * r;
    int32x4_t low[2] = {vdupq_n_s32(0), vdupq_n_s32(0)}, high[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
    multiply_pairs(low, quads, q);
    multiply_pairs(high, quads + 4, q + 16);
    for (int i = 0; i < 2; i++) {
        int32x4_t sum0 = i == 0 ? vuzp1q_s32(low[0], low[1]) : vuzp2q_s32(low[0], low[1]);
        int32x4_t sum1 = i == 0 ? vuzp1q_s32(high[0], high[1]) : vuzp2q_s32(high[0], high[1]);
        sum0 = vaddq_s32(sum0, start_of(kind, activations, rows, r + i, 0));
        if (er_form_of(kind) == ER_HALVES)
            sum1 = vaddq_s32(sum1, start_of(kind, activations, rows, r + i, 1));
        acc[i] = add_sums(kind, sum0, sum1, s, activations, rows, r + i, acc[i]);
    }
}
#endif

ER_INLINE void multiply_block(er_kind kind, const uint8_t *head, const uint8_t *block, int quarter,
                              const uint8_t *activations, int rows, float32x4_t acc[ER_TILE_ROWS]) {
    const block_scales s = scales_of(kind, head, block, QUARTER_GROUP * quarter);
    bytes quads[8];
    int r = 0;
    unpack(kind, block + er_subscale_bytes(kind) + 16 * quarter, 0, 8, quads);
#ifdef PAIRS
    for (; r + 1 < rows; r += 2)
        add_two_rows(kind, quads, &s, activations, rows, r, acc + r);
#endif
    for (; r < rows; r++)
        acc[r] = add_row(kind, quads, &s, activations, rows, r, acc[r]);
}

ER_INLINE void multiply_rows(const er_tile *t, er_kind kind, int rows) {
    const size_t unit_bytes = (size_t)er_unit_bytes(kind), tile_bytes = t->n_units * unit_bytes;
    const float32x4_t quiet_nan = vreinterpretq_f32_u32(vdupq_n_u32(ER_QUIET_NAN));
    for (size_t g = 0; g < t->n_groups; g++) {
        const uint8_t *head = t->weights + g * t->group_bytes, *end = head + tile_bytes, *a = t->activations;
        float *out = t->out + g * ER_GROUP;
        float32x4_t acc[4][ER_TILE_ROWS];
        for (int quarter = 0; quarter < 4; quarter++)
            for (int r = 0; r < rows; r++)
                acc[quarter][r] = t->first ? vdupq_n_f32(0)
                                           : vld1q_f32(out + (size_t)r * t->out_stride + QUARTER_GROUP * quarter);
        for (; head < end; head += unit_bytes) {
            const uint8_t *block = head + er_head_bytes(kind);
            /* What follows this pass over a group is the next group's pass, not the next bytes. */
            const uint8_t *ahead = block + AHEAD_BYTES;
            if (ahead >= end)
                ahead += t->group_bytes - tile_bytes;
            for (int b = 0; b < er_unit_blocks(kind); b++, block += er_block_bytes(kind)) {
                for (int line = 0; line < (er_block_bytes(kind) + 63) / 64; line++)
                    ER_PREFETCH(ahead + b * er_block_bytes(kind) + 64 * line);
                for (int quarter = 0; quarter < 4; quarter++)
                    multiply_block(kind, head, block, quarter, a, rows, acc[quarter]);
                a += ER_ACTIVATION_BYTES * rows;
            }
        }
        for (int quarter = 0; quarter < 4; quarter++)
            for (int r = 0; r < rows; r++) {
                float32x4_t value = acc[quarter][r];
                if (t->last)
                    value = vbslq_f32(vceqq_f32(value, value), value, quiet_nan);
                vst1q_f32(out + (size_t)r * t->out_stride + QUARTER_GROUP * quarter, value);
            }
    }
}

#define DEFINE(kind_, ...)                                                                                     \
    static void multiply_##kind_(const er_tile *t) {                                                           \
        switch (t->n_rows) {                                                                                   \
        case 1: multiply_rows(t, ER_##kind_, 1); break;                                                        \
        case 2: multiply_rows(t, ER_##kind_, 2); break;                                                        \
        default: multiply_rows(t, ER_##kind_, t->n_rows);                                                      \
        }                                                                                                      \
    }
ER_QUANTIZED(DEFINE)

ER_DEFINE_VARIANT(VARIANT, VARIANT_NAME, RUNS_HERE, quantize_block)
