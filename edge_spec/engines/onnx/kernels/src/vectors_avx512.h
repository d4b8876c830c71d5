/* Registers of 16 floats. What is written once for all vector widths is made of these operations.
 *
 * SCORE_QUERIES and VALUE_QUERIES are how many queries go by at once in attention: as many as there are registers for.
 * LOAD_HALF is of 16-bit floats; FMA(a, b, c) = a * b + c; EXPONENT(p, t) = p with the lowest bits of t added to its
 * exponent. MAX and MIN of a number and of what is none give the latter if it comes second; else it is not defined.
 */
#define vec __m512
#define WIDTH 16
#define SCORE_QUERIES 8
#define VALUE_QUERIES 4
#define LOAD(at) _mm512_loadu_ps(at)
#define LOAD_HALF(at) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(at)))
#define STORE(at, x) _mm512_storeu_ps(at, x)
#define SET1(x) _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define ADD(a, b) _mm512_add_ps(a, b)
#define SUB(a, b) _mm512_sub_ps(a, b)
#define MUL(a, b) _mm512_mul_ps(a, b)
#define DIV(a, b) _mm512_div_ps(a, b)
#define MAX(a, b) _mm512_max_ps(a, b)
#define MIN(a, b) _mm512_min_ps(a, b)
#define EXPONENT(p, t) \
    _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)))
