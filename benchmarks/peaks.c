/* What one thread of this computer can do at most: read memory, and multiply bytes. For benchmarks/peaks.py. */
#include <stddef.h>
#include <stdint.h>

#define UNROLL _Pragma("GCC unroll 16")

typedef uint64_t wide __attribute__((vector_size(32), aligned(8)));
enum { WIDE = 8 };

/* Reads n_bytes, a multiple of 256, and returns something that depends on all of them. */
uint64_t peak_read(const wide *at, size_t n_bytes) {
    wide found[WIDE];
    UNROLL for (int j = 0; j < WIDE; j++) found[j] = (wide){0};
    for (size_t i = 0; i < n_bytes / sizeof *at; i += WIDE)
        UNROLL for (int j = 0; j < WIDE; j++) found[j] |= at[i + (size_t)j];
    UNROLL for (int j = 1; j < WIDE; j++) found[0] |= found[j];
    return found[0][0] | found[0][1] | found[0][2] | found[0][3];
}

#if defined(__x86_64__)
#include <immintrin.h>

/* Sums are independent of each other: the latency of an instruction hides behind eleven others. `low` and `high`, and
 * what becomes of them, are unknown to the compiler, or it would compute ahead. */
enum { SUMS = 12 };
#define DEFINE(name, target_, vector, set1, or, first, step)                          \
    __attribute__((target(target_))) int peak_##name(int64_t n, int low, int high) { \
        vector sums[SUMS], a = set1(low), b = set1(high);                             \
        UNROLL for (int j = 0; j < SUMS; j++) sums[j] = set1(0);                      \
        for (int64_t i = 0; i < n; i++) {                                             \
            UNROLL for (int j = 0; j < SUMS; j++) {                                   \
                sums[j] = step(sums[j], a, b);                                        \
                __asm__ volatile("" : "+x"(sums[j]), "+x"(a));                        \
            }                                                                         \
        }                                                                             \
        UNROLL for (int j = 1; j < SUMS; j++) sums[0] = or(sums[0], sums[j]);         \
        return first(sums[0]);                                                        \
    }

#define FIRST_512(x) _mm_cvtsi128_si32(_mm512_castsi512_si128(x))
#define FIRST_256(x) _mm_cvtsi128_si32(_mm256_castsi256_si128(x))
/* The least that goes through 16 bits: one multiplication and one addition per 32 or 64 products. */
#define PAIRS(sum, a, b) _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b))
#define PAIRS_512(sum, a, b) _mm512_add_epi16(sum, _mm512_maddubs_epi16(a, b))

DEFINE(avx512_vnni, "avx512f,avx512bw,avx512vl,avx512vnni", __m512i, _mm512_set1_epi32, _mm512_or_si512, FIRST_512,
       _mm512_dpbusd_epi32)
DEFINE(avx512_vnni_256, "avx512f,avx512bw,avx512vl,avx512vnni,avx2", __m256i, _mm256_set1_epi32, _mm256_or_si256,
       FIRST_256, _mm256_dpbusd_epi32)
DEFINE(avx512, "avx512f,avx512bw", __m512i, _mm512_set1_epi32, _mm512_or_si512, FIRST_512, PAIRS_512)
DEFINE(avx2, "avx2", __m256i, _mm256_set1_epi32, _mm256_or_si256, FIRST_256, PAIRS)
#endif
