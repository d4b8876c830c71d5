/* 256-bit registers: eight outputs at a time, for CPUs without wider ones.
 *
 * The file that includes this defines these macros and chooses the instruction set:
 *     VARIANT        the er_variant it defines; VARIANT_NAME, RUNS_HERE
 *     MULTIPLY_ADD   (sum, unsigned bytes, signed bytes): adds four products to every 32-bit sum; without it the
 *                    products go through 16 bits, in chains as long as the codes' range allows
 */
#include "quantize_avx2.h"
#include "rows.h"
#include "vectors_avx2.h"

enum { HALF_GROUP = 8, AHEAD_BYTES = 2304 };

ER_INLINE __m256 bfloats(const uint8_t *at) {
    const __m128i stored = _mm_loadu_si128((const __m128i *)at);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(stored), 16));
}

#define FLOAT_ROWS 4
#define FLOAT_GROUPS(rows) ((rows) == 1 ? 4 : (rows) == 2 ? 2 : 1)
#define LOAD_BFLOAT(at) bfloats(at)
#define SETTLED(x)                                                                                             \
    _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(ER_QUIET_NAN)), _mm256_cmp_ps(x, x, _CMP_UNORD_Q))
#include "floats.h"

ER_INLINE __m256 unsigned_bytes(const uint8_t *at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at)));
}

ER_INLINE __m256 signed_bytes(const uint8_t *at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
}

/* The low and the high 4 bits of 8 bytes, as floats. */
ER_INLINE __m256 low_halves(const uint8_t *at) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at));
    return _mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(15)));
}

ER_INLINE __m256 high_halves(const uint8_t *at) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at));
    return _mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4));
}

/* Half of a quad, of outputs 0 or of outputs 8. */
#define bytes __m256i
#define LOAD_BYTES(at) _mm256_loadu_si256((const __m256i *)(at))
#define SET_BYTES(x) _mm256_set1_epi8(x)
#define AND(a, b) _mm256_and_si256(a, b)
#define OR(a, b) _mm256_or_si256(a, b)
#define RIGHT(x, n) _mm256_srli_epi16(x, n)
#define LEFT(x, n) _mm256_slli_epi16(x, n)
#define BYTE_SHIFTS false
#define LOAD_TABLE(at) _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(at)))
#define LOOK_UP(table, places) _mm256_shuffle_epi8(table, places)
#define SIGNED(x) (x)
#define NEGATED(x) _mm256_xor_ps(x, _mm256_set1_ps(-0.0f))
#include "blocks.h"

/* A block is multiplied in two parts of four quads, both halves of the group at a time: then the weights of a part stay in
 * registers while the rows go by, and what is loaded of a row serves both. */
enum { HALVES = 2, PARTS = 2, PART_QUADS = 4, PART_BYTES = 4 * PART_QUADS };

/* Whether the products of a block are added in 16 bits. Two products of a number of 4 bits and a q are at most 2 * 127 * 15,
 * and eight of these are below 2^15. */
ER_INLINE bool adds_pairs(er_kind kind) {
#ifdef MULTIPLY_ADD
    (void)kind;
    return false;
#else
    return er_number_bits(kind) <= 4;
#endif
}

/* Whether 8-bit numbers count 128 less: as |number - 128| and q with the sign of number - 128, or pairs would saturate. */
ER_INLINE bool is_centered(er_kind kind) {
#ifdef MULTIPLY_ADD
    (void)kind;
    return false;
#else
    return er_number_bits(kind) == 8;
#endif
}

/* Adds the products of a part with a row: to pairs of 16 bits, or to sums of 32 bits. */
ER_INLINE __m256i add_products(er_kind kind, __m256i sum, const __m256i *quads, const __m256i *four) {
#ifdef MULTIPLY_ADD
    (void)kind;
    ER_UNROLL for (int j = 0; j < PART_QUADS; j++) sum = MULTIPLY_ADD(sum, quads[j], four[j]);
    return sum;
#else
    /* Of 5 and 6 bits four and two pairs stay below 2^15. */
    const int bits = er_number_bits(kind), chain = bits <= 5 ? 4 : bits == 6 ? 2 : 1;
    const __m256i ones = _mm256_set1_epi16(1), top = _mm256_set1_epi8(-128);
    __m256i pairs = _mm256_setzero_si256();
    ER_UNROLL for (int j = 0; j < PART_QUADS; j++) {
        const __m256i number = is_centered(kind) ? _mm256_xor_si256(quads[j], top) : quads[j];
        const __m256i pair = is_centered(kind)
                                 ? _mm256_maddubs_epi16(_mm256_abs_epi8(number), _mm256_sign_epi8(four[j], number))
                                 : _mm256_maddubs_epi16(number, four[j]);
        pairs = j % chain == 0 ? pair : _mm256_add_epi16(pairs, pair);
        if (!adds_pairs(kind) && j % chain == chain - 1)
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    return adds_pairs(kind) ? _mm256_add_epi16(sum, pairs) : sum;
#endif
}

/* Adds a part of a block to all rows. kept: what its first part leaves to its second one, where both become one number. */
ER_INLINE void add_part(er_kind kind, int part, const uint8_t *codes, const block_scales s[HALVES],
                        const uint8_t *activations, int rows, __m256i (*kept)[HALVES], __m256 (*acc)[HALVES]) {
    const uint8_t *scales = activations + 32 * rows, *firsts = scales + 4 * rows, *seconds = firsts + 4 * rows;
    const bool has_halves = er_form_of(kind) == ER_HALVES || er_form_of(kind) == ER_MINIMA;
    const bool has_offset = !er_has_minima(kind) && !is_centered(kind), is_last = has_halves || part == PARTS - 1;
    __m256i quads[HALVES][PART_QUADS];
    ER_UNROLL for (int h = 0; h < HALVES; h++)
        unpack(kind, codes + 32 * h, PART_QUADS * part, PART_QUADS, quads[h]);
    ER_UNROLL_TWICE for (int r = 0; r < rows; r++) {
        const uint8_t *q = activations + 32 * r + PART_BYTES * part;
        const __m256 scale = is_last ? _mm256_set1_ps(er_load_f32(scales + 4 * r)) : _mm256_setzero_ps();
        __m256i four[PART_QUADS], offset = _mm256_setzero_si256();
        ER_UNROLL for (int j = 0; j < PART_QUADS; j++) four[j] = _mm256_set1_epi32(er_load_i32(q + 4 * j));
        if (has_offset && is_last)
            offset = _mm256_set1_epi32(er_load_i32((has_halves && part == 1 ? seconds : firsts) + 4 * r));
        ER_UNROLL for (int h = 0; h < HALVES; h++) {
            const bool begins = has_halves || part == 0;
            __m256i sum = add_products(kind, begins ? _mm256_setzero_si256() : kept[r][h], quads[h], four);
            if (!is_last) {
                kept[r][h] = sum;
                continue;
            }
            if (adds_pairs(kind))
                sum = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
            if (has_offset)
                sum = _mm256_add_epi32(sum, offset);
            const vec *d = s[h].d, *m = s[h].m;
            __m256 total = acc[r][h];
            total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d[has_halves ? part : 0], scale), total);
            if (er_form_of(kind) == ER_MINIMUM)
                total = _mm256_fmadd_ps(d[1], _mm256_set1_ps(er_load_f32(firsts + 4 * r)), total);
            if (er_form_of(kind) == ER_MINIMA && part == 1) {
                total = _mm256_fmadd_ps(m[0], _mm256_set1_ps(er_load_f32(firsts + 4 * r)), total);
                total = _mm256_fmadd_ps(m[1], _mm256_set1_ps(er_load_f32(seconds + 4 * r)), total);
            }
            acc[r][h] = total;
        }
    }
}

/* rows: 1 as a constant, which keeps its sums in registers, or t->n_rows, whose sums stay in the cache: 16 registers
 * do not hold them together with a part of a block. */
ER_INLINE void multiply_rows(const er_tile *t, er_kind kind, int rows) {
    const size_t unit_bytes = (size_t)er_unit_bytes(kind), tile_bytes = t->n_units * unit_bytes;
    const __m256 quiet_nan = _mm256_castsi256_ps(_mm256_set1_epi32(ER_QUIET_NAN));
    for (size_t g = 0; g < t->n_groups; g++) {
        const uint8_t *head = t->weights + g * t->group_bytes, *end = head + tile_bytes, *a = t->activations;
        float *out = t->out + g * ER_GROUP;
        __m256i kept[ER_TILE_ROWS][HALVES];
        __m256 acc[ER_TILE_ROWS][HALVES];
        for (int r = 0; r < rows; r++)
            for (int h = 0; h < HALVES; h++)
                acc[r][h] = t->first ? _mm256_setzero_ps()
                                     : _mm256_loadu_ps(out + (size_t)r * t->out_stride + HALF_GROUP * h);
        for (; head < end; head += unit_bytes) {
            const uint8_t *block = head + er_head_bytes(kind);
            /* What follows this pass over a group is the next group's pass, not the next bytes. */
            const uint8_t *ahead = block + AHEAD_BYTES;
            if (ahead >= end)
                ahead += t->group_bytes - tile_bytes;
            for (int b = 0; b < er_unit_blocks(kind); b++, block += er_block_bytes(kind)) {
                for (int line = 0; line < (er_block_bytes(kind) + 63) / 64; line++)
                    _mm_prefetch((const char *)ahead + b * er_block_bytes(kind) + 64 * line, _MM_HINT_T0);
                block_scales s[HALVES];
                ER_UNROLL for (int h = 0; h < HALVES; h++) s[h] = scales_of(kind, head, block, HALF_GROUP * h);
                ER_UNROLL for (int part = 0; part < PARTS; part++)
                    add_part(kind, part, block + er_subscale_bytes(kind), s, a, rows, kept, acc);
                a += ER_ACTIVATION_BYTES * rows;
            }
        }
        for (int r = 0; r < rows; r++)
            for (int h = 0; h < HALVES; h++) {
                const __m256 is_nan = _mm256_cmp_ps(acc[r][h], acc[r][h], _CMP_UNORD_Q);
                if (t->last)
                    acc[r][h] = _mm256_blendv_ps(acc[r][h], quiet_nan, is_nan);
                _mm256_storeu_ps(out + (size_t)r * t->out_stride + HALF_GROUP * h, acc[r][h]);
            }
    }
}

#define DEFINE(kind_, ...)                                                                                     \
    static void multiply_##kind_(const er_tile *t) {                                                           \
        switch (t->n_rows) {                                                                                   \
        case 1: multiply_rows(t, ER_##kind_, 1); break;                                                        \
        default: multiply_rows(t, ER_##kind_, t->n_rows);                                                      \
        }                                                                                                      \
    }
ER_QUANTIZED(DEFINE)

ER_DEFINE_VARIANT(VARIANT, VARIANT_NAME, RUNS_HERE, er_quantize_block_avx2)
