/* 256-bit registers: eight outputs at a time, for CPUs without wider ones.
 *
 * The file that includes this defines these macros and chooses the instruction set:
 *     VARIANT        the er_variant it defines; VARIANT_NAME, RUNS_HERE
 *     MULTIPLY_ADD   (sum, unsigned bytes, signed bytes): adds four products to every 32-bit sum; without it the
 *                    products go through 16 bits, in chains as long as the codes' range allows
 */
#include <immintrin.h>
#include <string.h>

#include "quantize_avx2.h"
#include "rows.h"

enum { HALF_GROUP = 8, AHEAD_BYTES = 2304 };

static bool runs_here(void) { return RUNS_HERE; }

ER_DEFINE_QUANTIZE(er_quantize_block_avx2)

ER_INLINE __m256 halves(const uint8_t *at) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at)); }

ER_INLINE __m256 unsigned_bytes(const uint8_t *at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at)));
}

ER_INLINE __m256 signed_bytes(const uint8_t *at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
}

ER_INLINE __m256 bfloats(const uint8_t *at) {
    const __m128i stored = _mm_loadu_si128((const __m128i *)at);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(stored), 16));
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

ER_INLINE __m256i load(const uint8_t *at) { return _mm256_loadu_si256((const __m256i *)at); }

/* Half of each of the eight quads of a block, as unsigned bytes. codes: of outputs 0 or of outputs 8. */
ER_INLINE void unpack(er_kind kind, const uint8_t *codes, __m256i quads[8]) {
    const __m256i low = _mm256_set1_epi8(15);
    if (er_code_bits(kind) == 8) {
        ER_UNROLL for (int j = 0; j < 8; j++) quads[j] = load(codes + 64 * j);
        return;
    }
    if (er_code_bits(kind) < 4) {
        const int third = er_code_bits(kind) == 3; /* a bit of its own */
        const __m256i high = load(codes + 128 * third), bit = _mm256_set1_epi8(4);
        ER_UNROLL for (int j = 0; j < 8; j++) {
            const __m256i four = load(codes + 64 * (j / 4));
            const __m256i moved = j < 2 ? _mm256_slli_epi16(high, j < 2 ? 2 - j : 0)
                                        : _mm256_srli_epi16(high, j < 2 ? 0 : j - 2);
            quads[j] = _mm256_and_si256(_mm256_srli_epi16(four, 2 * (j % 4)), _mm256_set1_epi8(3));
            if (third)
                quads[j] = _mm256_or_si256(quads[j], _mm256_and_si256(moved, bit));
        }
        return;
    }
    ER_UNROLL for (int j = 0; j < 4; j++) {
        const __m256i pair = load(codes + 64 * j);
        quads[2 * j] = _mm256_and_si256(pair, low);
        quads[2 * j + 1] = _mm256_and_si256(_mm256_srli_epi16(pair, 4), low);
    }
    if (er_code_bits(kind) == 5) {
        const __m256i high = load(codes + 256), bit = _mm256_set1_epi8(16);
        ER_UNROLL for (int j = 0; j < 8; j++) {
            const __m256i moved = j < 4 ? _mm256_slli_epi16(high, j < 4 ? 4 - j : 0)
                                        : _mm256_srli_epi16(high, j < 4 ? 0 : j - 4);
            quads[j] = _mm256_or_si256(quads[j], _mm256_and_si256(moved, bit));
        }
    }
    if (er_code_bits(kind) == 6) {
        const __m256i bits = _mm256_set1_epi8(48);
        ER_UNROLL for (int j = 0; j < 8; j++) {
            const __m256i high = load(codes + 256 + 64 * (j / 4));
            const int shift = 4 - 2 * (j % 4);
            const __m256i moved = shift >= 0 ? _mm256_slli_epi16(high, shift >= 0 ? shift : 0)
                                             : _mm256_srli_epi16(high, shift >= 0 ? 0 : -shift);
            quads[j] = _mm256_or_si256(quads[j], _mm256_and_si256(moved, bits));
        }
    }
    if (er_has_table(kind)) {
        const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)er_table(kind)));
        ER_UNROLL for (int j = 0; j < 8; j++) quads[j] = _mm256_shuffle_epi8(table, quads[j]);
    }
}

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

/* d0, d1: scales of the two halves, or scale and minimum; m0, m1: minima of the two halves. */
ER_INLINE __m256 add_block(er_kind kind, const __m256i quads[8], __m256 d0, __m256 d1, __m256 m0, __m256 m1,
                           const uint8_t *activations, int rows, int r, __m256 acc) {
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
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d0, scale), acc);
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum1), _mm256_mul_ps(d1, scale), acc);
        if (er_form_of(kind) == ER_HALVES)
            return acc;
        acc = _mm256_fmadd_ps(m0, _mm256_set1_ps(er_load_f32(firsts + 4 * r)), acc);
        return _mm256_fmadd_ps(m1, _mm256_set1_ps(er_load_f32(second)), acc);
    }
    sum = multiply_quads(kind, sum, quads, q, 0, 8);
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d0, scale), acc);
    if (er_form_of(kind) == ER_MINIMUM)
        acc = _mm256_fmadd_ps(d1, _mm256_set1_ps(er_load_f32(firsts + 4 * r)), acc);
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
                    __m256 d0 = kind == ER_MXFP4 ? bfloats(head + 16 * h) : halves(head + 16 * h), d1 = d0;
                    __m256 m0 = d0, m1 = d0;
                    __m256i quads[8];
                    if (er_has_minima(kind))
                        d1 = halves(head + 32 + 16 * h);
                    if (er_form_of(kind) == ER_HALVES) {
                        d1 = _mm256_mul_ps(d0, signed_bytes(block + 16 + HALF_GROUP * h));
                        d0 = _mm256_mul_ps(d0, signed_bytes(block + HALF_GROUP * h));
                    } else if (er_form_of(kind) == ER_MINIMA) {
                        const uint8_t *both = block + HALF_GROUP * h;
                        m0 = _mm256_xor_ps(_mm256_mul_ps(d1, high_halves(both)), _mm256_set1_ps(-0.0f));
                        m1 = _mm256_xor_ps(_mm256_mul_ps(d1, high_halves(both + 16)), _mm256_set1_ps(-0.0f));
                        d1 = _mm256_mul_ps(d0, low_halves(both + 16));
                        d0 = _mm256_mul_ps(d0, low_halves(both));
                    } else if (kind == ER_IQ4_XS) {
                        d0 = _mm256_mul_ps(d0, signed_bytes(block + HALF_GROUP * h));
                    } else if (er_has_subscales(kind)) {
                        d0 = _mm256_mul_ps(d0, unsigned_bytes(block + HALF_GROUP * h));
                        d1 = _mm256_mul_ps(d1, unsigned_bytes(block + 16 + HALF_GROUP * h));
                        d1 = _mm256_xor_ps(d1, _mm256_set1_ps(-0.0f));
                    }
                    unpack(kind, block + er_subscale_bytes(kind) + 32 * h, quads);
                    for (int r = 0; r < rows; r++)
                        acc[r][h] = add_block(kind, quads, d0, d1, m0, m1, a, rows, r, acc[r][h]);
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

#define DEFINE(kind_)                                                                                          \
    static void multiply_##kind_(const er_tile *t) {                                                           \
        switch (t->n_rows) {                                                                                   \
        case 1: multiply_rows(t, kind_, 1); break;                                                             \
        default: multiply_rows(t, kind_, t->n_rows);                                                           \
        }                                                                                                      \
    }
ER_FOR_QUANTIZED(DEFINE)

#define vec __m256
#define WIDTH 8
#define FLOAT_ROWS 4
#define FLOAT_GROUPS(rows) ((rows) == 1 ? 4 : (rows) == 2 ? 2 : 1)
#define LOAD(at) _mm256_loadu_ps(at)
#define LOAD_HALF(at) halves(at)
#define LOAD_BFLOAT(at) bfloats(at)
#define STORE(at, x) _mm256_storeu_ps(at, x)
#define SET1(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define SETTLED(x)                                                                                             \
    _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(ER_QUIET_NAN)), _mm256_cmp_ps(x, x, _CMP_UNORD_Q))
#include "floats.h"

static void multiply(const er_tile *t) {
#define CALL(kind_) multiply_##kind_(t)
    ER_FOR_KIND(t->kind, CALL)
#undef CALL
}

const er_variant VARIANT = {VARIANT_NAME, runs_here, quantize, multiply};
