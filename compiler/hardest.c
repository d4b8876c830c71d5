/* The newest that the kernels ask of a compiler: one that cannot compile this cannot compile them. */
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "../edge_spec/engines/onnx/kernels/src/export.h"
#include "../edge_spec/engines/onnx/kernels/src/target.h"

#if ER_X86
#include <cpuid.h>
#include <immintrin.h>

ER_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
static void multiply(const uint8_t *of, int32_t *sums) {
    const __m512i bytes = _mm512_loadu_si512(of);
    const __m512i wide = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bytes, bytes);
    const __m256i part = _mm256_loadu_si256((const __m256i *)of);
    const __m256i narrow = _mm256_dpbusd_epi32(_mm512_castsi512_si256(wide), part, part);
    _mm256_storeu_si256((__m256i *)sums, narrow);
}
ER_TARGET_END

#if ER_X86_HAS_AVX_VNNI
ER_TARGET_BEGIN("avx2,fma,f16c,avxvnni")
static void multiply_again(const uint8_t *of, int32_t *sums) {
    const __m256i part = _mm256_loadu_si256((const __m256i *)of);
    _mm256_storeu_si256((__m256i *)sums, _mm256_dpbusd_avx_epi32(part, part, part));
}
ER_TARGET_END
#endif
#elif ER_ARM
#include <arm_neon.h>

#if ER_ARM_HAS_I8MM
ER_TARGET_BEGIN(ER_ARM_I8MM)
static void multiply(const uint8_t *of, int32_t *sums) {
    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(of));
    vst1q_s32(sums, vmmlaq_s32(vdotq_laneq_s32(vdupq_n_s32(0), bytes, bytes, 1), bytes, bytes));
}
ER_TARGET_END
#endif
#endif

ER_EXPORT float edge_hardest(const uint8_t *of, int32_t *sums) {
    static atomic_int calls;
    atomic_fetch_add(&calls, 1);
#if ER_X86 || ER_ARM_HAS_I8MM
    multiply(of, sums);
#endif
#if ER_X86_HAS_AVX_VNNI
    multiply_again(of, sums);
#endif
    return sqrtf(fmaf((float)sums[0], 2.0f, (float)sums[1]));
}
