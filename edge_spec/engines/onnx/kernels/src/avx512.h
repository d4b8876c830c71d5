/* 512-bit registers: a quad of 16 outputs is one register.
 *
 * The file that includes this defines these macros and chooses the instruction set:
 *     VARIANT        the er_variant it defines; VARIANT_NAME, RUNS_HERE
 *     MULTIPLY_ADD   as in avx256.h
 */
#include "pages_ahead.h"
#include "quantize_avx2.h"
#include "rows.h"
#include "vectors_avx512.h"

/* How far ahead weights are prefetched: the latency of memory times its speed, which few rows need all of. With many
 * they would push out of the first-level cache what is multiplied with them. */
enum { FEW_ROWS = 8, FEW_AHEAD_BYTES = 4608, AHEAD_BYTES = 3456 };

/* How many rows are multiplied together; with 16 sums, 8 quads and what is multiplied 32 registers have room for it. */
enum { ROWS_AT_ONCE = 4 };

ER_INLINE __m512 bfloats(const uint8_t *at) {
    const __m256i stored = _mm256_loadu_si256((const __m256i *)at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(stored), 16));
}

#define FLOAT_ROWS 8
#define FLOAT_GROUPS(rows) ((rows) <= 4 ? 4 : 2)
#define LOAD_BFLOAT(at) bfloats(at)
#define SETTLED(x)                                                                                             \
    _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),                                              \
                       _mm512_castsi512_ps(_mm512_set1_epi32(ER_QUIET_NAN)))
#include "floats.h"

ER_INLINE __m512 unsigned_bytes(const uint8_t *at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at)));
}

ER_INLINE __m512 signed_bytes(const uint8_t *at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
}

/* The low and the high 4 bits of 16 bytes, as floats. */
ER_INLINE __m512 low_halves(const uint8_t *at) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
    return _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(15)));
}

ER_INLINE __m512 high_halves(const uint8_t *at) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
    return _mm512_cvtepi32_ps(_mm512_srli_epi32(bytes, 4));
}

#define bytes __m512i
#define LOAD_BYTES(at) _mm512_loadu_si512(at)
#define SET_BYTES(x) _mm512_set1_epi8(x)
#define AND(a, b) _mm512_and_si512(a, b)
#define OR(a, b) _mm512_or_si512(a, b)
#define RIGHT(x, n) _mm512_srli_epi16(x, n)
#define LEFT(x, n) _mm512_slli_epi16(x, n)
#define BYTE_SHIFTS false
#define LOAD_TABLE(at) _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(at)))
#define LOOK_UP(table, places) _mm512_shuffle_epi8(table, places)
#define SIGNED(x) (x)
#define NEGATED(x) _mm512_xor_ps(x, _mm512_set1_ps(-0.0f))
#include "blocks.h"

/* Adds the products of quads from .. to - 1 with `rows` rows, 32 bytes apart, to their sums. Row by row a sum would wait
 * for itself, eight times the latency of a multiplication, which is longer than a processor looks ahead. */
ER_INLINE void multiply_quads(er_kind kind, __m512i *sums, const __m512i *quads, const uint8_t *q, int from, int to,
                              int rows) {
#ifdef MULTIPLY_ADD
    (void)kind;
    ER_UNROLL for (int j = from; j < to; j++)
        ER_UNROLL for (int r = 0; r < rows; r++)
            sums[r] = MULTIPLY_ADD(sums[r], quads[j], _mm512_set1_epi32(er_load_i32(q + 32 * r + 4 * j)));
#else
    /* Through 16 bits, in chains as in avx256.h; of numbers of 8 bits the two halves are multiplied one by one. */
    const int bits = er_number_bits(kind), chain = bits <= 4 || bits == 8 ? 8 : bits == 5 ? 4 : 2;
    const __m512i low = _mm512_set1_epi8(15);
    ER_UNROLL for (int r = 0; r < rows; r++) {
        __m512i pairs = _mm512_setzero_si512(), high_pairs = pairs;
        ER_UNROLL for (int j = from; j < to; j++) {
            const __m512i four = _mm512_set1_epi32(er_load_i32(q + 32 * r + 4 * j));
            const __m512i number = bits == 8 ? _mm512_and_si512(quads[j], low) : quads[j];
            const __m512i pair = _mm512_maddubs_epi16(number, four);
            pairs = (j - from) % chain == 0 ? pair : _mm512_add_epi16(pairs, pair);
            if (bits == 8) {
                const __m512i high = _mm512_and_si512(_mm512_srli_epi16(quads[j], 4), low);
                high_pairs = _mm512_add_epi16(high_pairs, _mm512_maddubs_epi16(high, four));
            }
            if ((j - from) % chain == chain - 1 || j == to - 1)
                sums[r] = _mm512_add_epi32(sums[r], _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
        }
        if (bits == 8)
            sums[r] = _mm512_add_epi32(sums[r], _mm512_madd_epi16(high_pairs, _mm512_set1_epi16(16)));
    }
#endif
}

/* Adds a block to `rows` rows from `first` on, of tile_rows. */
ER_INLINE void add_block(er_kind kind, const __m512i quads[8], const block_scales *s, const uint8_t *activations, int tile_rows, int first, int rows, __m512 *acc) {
    const uint8_t *q = activations + 32 * first, *scales = activations + 32 * tile_rows + 4 * first;
    const uint8_t *firsts = scales + 4 * tile_rows, *seconds = firsts + 4 * tile_rows;
    const bool has_halves = er_form_of(kind) == ER_HALVES || er_form_of(kind) == ER_MINIMA;
    const int quads_of_part = has_halves ? 4 : 8;
    ER_UNROLL for (int part = 0; part < 8 / quads_of_part; part++) {
        const uint8_t *offsets = part == 0 ? firsts : seconds;
        __m512i sums[ROWS_AT_ONCE];
        ER_UNROLL for (int r = 0; r < rows; r++)
            sums[r] = er_has_minima(kind) ? _mm512_setzero_si512() : _mm512_set1_epi32(er_load_i32(offsets + 4 * r));
        multiply_quads(kind, sums, quads, q, quads_of_part * part, quads_of_part * (part + 1), rows);
        ER_UNROLL for (int r = 0; r < rows; r++) {
            const __m512 scale = _mm512_set1_ps(er_load_f32(scales + 4 * r));
            const __m512 by = _mm512_mul_ps(s->d[part], scale);
            acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r]), by, acc[r]);
            if (er_form_of(kind) == ER_MINIMUM)
                acc[r] = _mm512_fmadd_ps(s->d[1], _mm512_set1_ps(er_load_f32(firsts + 4 * r)), acc[r]);
            if (er_form_of(kind) == ER_MINIMA && part == 1) {
                acc[r] = _mm512_fmadd_ps(s->m[0], _mm512_set1_ps(er_load_f32(firsts + 4 * r)), acc[r]);
                acc[r] = _mm512_fmadd_ps(s->m[1], _mm512_set1_ps(er_load_f32(seconds + 4 * r)), acc[r]);
            }
        }
    }
}

/* is_known: whether the number of rows is a constant. */
ER_INLINE void multiply_rows(const er_tile *t, er_kind kind, int rows, bool is_known) {
    const size_t unit_bytes = (size_t)er_unit_bytes(kind), tile_bytes = t->n_units * unit_bytes;
    er_pages pages = er_pages_ahead(t, unit_bytes);
    for (size_t g = 0; g < t->n_groups; g++) {
        const uint8_t *head = t->weights + g * t->group_bytes, *end = head + tile_bytes, *a = t->activations;
        float *out = t->out + g * ER_GROUP;
        __m512 acc[ER_TILE_ROWS];
        ER_UNROLL for (int r = 0; r < rows; r++)
            acc[r] = t->first ? _mm512_setzero_ps() : _mm512_loadu_ps(out + (size_t)r * t->out_stride);
        for (; head < end; head += unit_bytes) {
            const uint8_t *block = head + er_head_bytes(kind);
            /* What follows this pass over a group is the next group's pass, not the next bytes. */
            const uint8_t *ahead = block + (rows <= FEW_ROWS ? FEW_AHEAD_BYTES : AHEAD_BYTES);
            if (ahead >= end)
                ahead += t->group_bytes - tile_bytes;
            er_prefetch_page(&pages, t, unit_bytes, rows);
            for (int b = 0; b < er_unit_blocks(kind); b++, block += er_block_bytes(kind)) {
                const block_scales s = scales_of(kind, head, block, 0);
                __m512i quads[8];
                ER_UNROLL for (int line = 0; line < (er_block_bytes(kind) + 63) / 64; line++)
                    _mm_prefetch((const char *)ahead + b * er_block_bytes(kind) + 64 * line, _MM_HINT_T0);
                unpack(kind, block + er_subscale_bytes(kind), 0, 8, quads);
                if (is_known) {
                    add_block(kind, quads, &s, a, rows, 0, rows, acc);
                } else {
                    int r = 0;
                    for (; r + ROWS_AT_ONCE <= rows; r += ROWS_AT_ONCE)
                        add_block(kind, quads, &s, a, rows, r, ROWS_AT_ONCE, acc + r);
                    switch (rows - r) {
                        case 3: add_block(kind, quads, &s, a, rows, r, 3, acc + r); break;
                        case 2: add_block(kind, quads, &s, a, rows, r, 2, acc + r); break;
                        case 1: add_block(kind, quads, &s, a, rows, r, 1, acc + r); break;
                    }
                }
                a += ER_ACTIVATION_BYTES * rows;
            }
        }
        ER_UNROLL for (int r = 0; r < rows; r++) {
            const __mmask16 is_nan = t->last ? _mm512_cmp_ps_mask(acc[r], acc[r], _CMP_UNORD_Q) : 0;
            acc[r] = _mm512_mask_mov_ps(acc[r], is_nan, _mm512_castsi512_ps(_mm512_set1_epi32(ER_QUIET_NAN)));
            _mm512_storeu_ps(out + (size_t)r * t->out_stride, acc[r]);
        }
    }
}

/* With the number of rows a constant, sums stay in registers; those of more rows go through the cache, which takes no
 * longer, and a third of a second to compile for each constant. */
#define ROWS(kind_, n) case n: multiply_rows(t, ER_##kind_, n, true); break;
#define DEFINE(kind_, ...)                                                                                     \
    static void multiply_##kind_(const er_tile *t) {                                                           \
        switch (t->n_rows) {                                                                                   \
            ROWS(kind_, 1) ROWS(kind_, 2) ROWS(kind_, 3) ROWS(kind_, 4)                                        \
            default: multiply_rows(t, ER_##kind_, t->n_rows, false);                                           \
        }                                                                                                      \
    }
ER_QUANTIZED(DEFINE)

ER_DEFINE_VARIANT(VARIANT, VARIANT_NAME, RUNS_HERE, er_quantize_block_avx2)
