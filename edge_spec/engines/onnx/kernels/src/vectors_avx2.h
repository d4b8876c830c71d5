/* Registers of 8 floats; see vectors_avx512.h. */
#define vec __m256
#define WIDTH 8
#define SCORE_QUERIES 4
#define VALUE_QUERIES 2
#define LOAD(at) _mm256_loadu_ps(at)
#define LOAD_HALF(at) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(at)))
#define STORE(at, x) _mm256_storeu_ps(at, x)
#define SET1(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ADD(a, b) _mm256_add_ps(a, b)
#define SUB(a, b) _mm256_sub_ps(a, b)
#define MUL(a, b) _mm256_mul_ps(a, b)
#define DIV(a, b) _mm256_div_ps(a, b)
#define MAX(a, b) _mm256_max_ps(a, b)
#define MIN(a, b) _mm256_min_ps(a, b)
#define EXPONENT(p, t) \
    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)))
