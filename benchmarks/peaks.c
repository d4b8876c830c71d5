/* What one thread of this computer can do at most: read memory, and multiply bytes. For benchmarks/peaks.py. */
#include <stddef.h>
#include <stdint.h>

#include "../edge_spec/engines/onnx/kernels/src/target.h"

typedef uint64_t wide __attribute__((vector_size(32), aligned(8)));
enum { WIDE = 8 };

/* Reads n_bytes, a multiple of 256, and returns something that depends on all of them. */
uint64_t peak_read(const wide *at, size_t n_bytes) {
    wide found[WIDE];
    ER_UNROLL for (int j = 0; j < WIDE; j++) found[j] = (wide){0};
    for (size_t i = 0; i < n_bytes / sizeof *at; i += WIDE)
        ER_UNROLL for (int j = 0; j < WIDE; j++) found[j] |= at[i + (size_t)j];
    ER_UNROLL for (int j = 1; j < WIDE; j++) found[0] |= found[j];
    return found[0][0] | found[0][1] | found[0][2] | found[0][3];
}

/* Sums are independent of each other: the latency of an instruction hides behind eleven others. `low` and `high`, and
 * what becomes of them, are unknown to the compiler, or it would compute ahead. */
enum { SUMS = 12 };
#define ON(list) __attribute__((target(list)))
#define DEFINE(name, on, vector, set1, or, first, step)                      \
    on int peak_##name(int64_t n, int low, int high) {                       \
        vector sums[SUMS], a = set1(low), b = set1(high);                    \
        ER_UNROLL for (int j = 0; j < SUMS; j++) sums[j] = set1(0);          \
        for (int64_t i = 0; i < n; i++) {                                    \
            ER_UNROLL for (int j = 0; j < SUMS; j++) {                       \
                sums[j] = step(sums[j], a, b);                               \
                __asm__ volatile("" : REGISTER(sums[j]), REGISTER(a));       \
            }                                                                \
        }                                                                    \
        ER_UNROLL for (int j = 1; j < SUMS; j++) sums[0] = or(sums[0], sums[j]); \
        return first(sums[0]);                                               \
    }

#if ER_X86
#include <immintrin.h>

#define REGISTER(x) "+x"(x)
#define FIRST_512(x) _mm_cvtsi128_si32(_mm512_castsi512_si128(x))
#define FIRST_256(x) _mm_cvtsi128_si32(_mm256_castsi256_si128(x))
/* The least that goes through 16 bits: one multiplication and one addition per 32 or 64 products. */
#define PAIRS(sum, a, b) _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b))
#define PAIRS_512(sum, a, b) _mm512_add_epi16(sum, _mm512_maddubs_epi16(a, b))

DEFINE(avx512_vnni, ON("avx512f,avx512bw,avx512vl,avx512vnni"), __m512i, _mm512_set1_epi32, _mm512_or_si512,
       FIRST_512, _mm512_dpbusd_epi32)
DEFINE(avx512_vnni_256, ON("avx512f,avx512bw,avx512vl,avx512vnni,avx2"), __m256i, _mm256_set1_epi32,
       _mm256_or_si256, FIRST_256, _mm256_dpbusd_epi32)
DEFINE(avx512, ON("avx512f,avx512bw"), __m512i, _mm512_set1_epi32, _mm512_or_si512, FIRST_512, PAIRS_512)
DEFINE(avx2, ON("avx2"), __m256i, _mm256_set1_epi32, _mm256_or_si256, FIRST_256, PAIRS)
#elif ER_ARM
#include <arm_neon.h>

#define REGISTER(x) "+w"(x)
#define FIRST(x) vgetq_lane_s32(x, 0)
#define BYTES(x) vreinterpretq_s8_s32(x)
/* The least without dot products: one multiplication adds eight products to sums of 16 bits. */
#define LONG(sum, a, b)                                                                                   \
    vreinterpretq_s32_s16(                                                                                \
        vmlal_s8(vreinterpretq_s16_s32(sum), vget_low_s8(BYTES(a)), vget_low_s8(BYTES(b))))
#define DOT(sum, a, b) vdotq_s32(sum, BYTES(a), BYTES(b))
#define MATRIX(sum, a, b) vmmlaq_s32(sum, BYTES(a), BYTES(b))

DEFINE(neon, , int32x4_t, vdupq_n_s32, vorrq_s32, FIRST, LONG)
#if ER_ARM_HAS_DOTPROD
DEFINE(neon_dotprod, ON(ER_ARM_DOTPROD), int32x4_t, vdupq_n_s32, vorrq_s32, FIRST, DOT)
#endif
#if ER_ARM_HAS_I8MM
DEFINE(neon_i8mm, ON(ER_ARM_I8MM), int32x4_t, vdupq_n_s32, vorrq_s32, FIRST, MATRIX)
#endif
#endif
