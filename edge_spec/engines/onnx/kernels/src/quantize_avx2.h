/* Quantizing 32 activations with 256-bit registers; for every x86 variant. */
#ifndef EDGE_ROWS_QUANTIZE_AVX2_H
#define EDGE_ROWS_QUANTIZE_AVX2_H

#include <immintrin.h>

#include "activations.h"

ER_INLINE er_quantized er_quantize_block_avx2(const float *x, int8_t *q) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256 x0 = _mm256_loadu_ps(x), x1 = _mm256_loadu_ps(x + 8);
    const __m256 x2 = _mm256_loadu_ps(x + 16), x3 = _mm256_loadu_ps(x + 24);
    const __m256i m0 = _mm256_and_si256(_mm256_castps_si256(x0), magnitude);
    const __m256i m1 = _mm256_and_si256(_mm256_castps_si256(x1), magnitude);
    const __m256i m2 = _mm256_and_si256(_mm256_castps_si256(x2), magnitude);
    const __m256i m3 = _mm256_and_si256(_mm256_castps_si256(x3), magnitude);
    const __m256i m = _mm256_max_epi32(_mm256_max_epi32(m0, m1), _mm256_max_epi32(m2, m3));
    __m128i top = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0x4e));
    top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0xb1));
    er_quantized block;
    float inverse;
    if (!er_scale_of(_mm_cvtsi128_si32(top), &block, &inverse)) {
        _mm256_storeu_si256((__m256i *)q, _mm256_setzero_si256());
        return block;
    }
    /* The conversion rounds half to even, as the reference does. */
    const __m256 by = _mm256_set1_ps(inverse);
    const __m256i low = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x0, by)),
                                           _mm256_cvtps_epi32(_mm256_mul_ps(x1, by)));
    const __m256i high = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x2, by)),
                                            _mm256_cvtps_epi32(_mm256_mul_ps(x3, by)));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i whole = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    _mm256_storeu_si256((__m256i *)q, whole);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), whole);
    __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    sums = _mm256_hadd_epi32(sums, sums);
    sums = _mm256_hadd_epi32(sums, sums);
    block.sum[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(sums));
    block.sum[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1));
    return block;
}

#endif
