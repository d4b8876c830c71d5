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

/* Adds the products of quads from .. to - 1 to sum. Without MULTIPLY_ADD, 8-bit numbers count 128 less here. */
ER_INLINE __m256i multiply_quads(er_kind kind, __m256i sum, const __m256i *quads, const uint8_t *q, int from, int to) {
#ifdef MULTIPLY_ADD
    (void)kind;
    ER_UNROLL for (int j = from; j < to; j++)
        sum = MULTIPLY_ADD(sum, quads[j], _mm256_set1_epi32(er_load_i32(q + 4 * j)));
    return sum;
#else
    /* Two products of a code and a q are at most 2 * 127 * 15, 31, 63 or 128: below 2^15 for 8, 4, 2, 1 quads. */
    const int bits = er_number_bits(kind), chain = bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
    const __m256i ones = _mm256_set1_epi16(1), top = _mm256_set1_epi8(-128);
    __m256i pairs = _mm256_setzero_si256();
    ER_UNROLL for (int j = from; j < to; j++) {
        const __m256i four = _mm256_set1_epi32(er_load_i32(q + 4 * j));
        if (bits == 8) { /* as |code - 128| and q with the sign of code - 128, or pairs would saturate */
            const __m256i code = _mm256_xor_si256(quads[j], top);
            pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(four, code));
        } else {
            const __m256i pair = _mm256_maddubs_epi16(quads[j], four);
            pairs = (j - from) % chain == 0 ? pair : _mm256_add_epi16(pairs, pair);
        }
        if ((j - from) % chain == chain - 1 || j == to - 1)
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    return sum;
#endif
}

ER_INLINE __m256 add_block(er_kind kind, const __m256i quads[8], const block_scales *s, const uint8_t *activations,
                           int rows, int r, __m256 acc) {
    const uint8_t *q = activations + 32 * r, *scales = activations + 32 * rows, *firsts = scales + 4 * rows;
    const __m256 scale = _mm256_set1_ps(er_load_f32(scales + 4 * r));
    __m256i sum = _mm256_setzero_si256();
#ifdef MULTIPLY_ADD
    const bool centered = false;
#else
    const bool centered = er_number_bits(kind) == 8;
#endif
    if (!er_has_minima(kind) && !centered)
        sum = _mm256_set1_epi32(er_load_i32(firsts + 4 * r));
    if (er_form_of(kind) == ER_HALVES || er_form_of(kind) == ER_MINIMA) {
        const uint8_t *second = firsts + 4 * rows + 4 * r;
        __m256i sum1 = er_has_minima(kind) ? sum : _mm256_set1_epi32(er_load_i32(second));
        sum = multiply_quads(kind, sum, quads, q, 0, 4);
        sum1 = multiply_quads(kind, sum1, quads, q, 4, 8);
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(s->d[0], scale), acc);
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum1), _mm256_mul_ps(s->d[1], scale), acc);
        if (er_form_of(kind) == ER_HALVES)
            return acc;
        acc = _mm256_fmadd_ps(s->m[0], _mm256_set1_ps(er_load_f32(firsts + 4 * r)), acc);
        return _mm256_fmadd_ps(s->m[1], _mm256_set1_ps(er_load_f32(second)), acc);
    }
    sum = multiply_quads(kind, sum, quads, q, 0, 8);
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(s->d[0], scale), acc);
    if (er_form_of(kind) == ER_MINIMUM)
        acc = _mm256_fmadd_ps(s->d[1], _mm256_set1_ps(er_load_f32(firsts + 4 * r)), acc);
    return acc;
}

/* rows: 1 as a constant, which keeps its sums in registers, or t->n_rows, whose sums stay in the cache: 16 registers
 * do not hold them together with a block, and unrolled code for 2 to 4 rows measured slower. */
ER_INLINE void multiply_rows(const er_tile *t, er_kind kind, int rows) {
    const size_t unit_bytes = (size_t)er_unit_bytes(kind), tile_bytes = t->n_units * unit_bytes;
    const __m256 quiet_nan = _mm256_castsi256_ps(_mm256_set1_epi32(ER_QUIET_NAN));
    for (size_t g = 0; g < t->n_groups; g++) {
        const uint8_t *head = t->weights + g * t->group_bytes, *end = head + tile_bytes, *a = t->activations;
        float *out = t->out + g * ER_GROUP;
        __m256 acc[ER_TILE_ROWS][2];
        for (int r = 0; r < rows; r++)
            for (int h = 0; h < 2; h++)
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
                ER_UNROLL for (int h = 0; h < 2; h++) {
                    const block_scales s = scales_of(kind, head, block, HALF_GROUP * h);
                    __m256i quads[8];
                    unpack(kind, block + er_subscale_bytes(kind) + 32 * h, quads);
                    for (int r = 0; r < rows; r++)
                        acc[r][h] = add_block(kind, quads, &s, a, rows, r, acc[r][h]);
                }
                a += ER_ACTIVATION_BYTES * rows;
            }
        }
        for (int r = 0; r < rows; r++)
            for (int h = 0; h < 2; h++) {
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
