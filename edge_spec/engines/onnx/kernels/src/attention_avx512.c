/* Attention in registers of 16 floats. */
#include "target.h"

#if ER_X86
#include <immintrin.h>

#include "cpu.h"

ER_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#define vec __m512
#define WIDTH 16
#define VARIANT er_attention_avx512
#define VARIANT_NAME "avx512"
#define RUNS_HERE er_cpu_features().avx512_vnni
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
#define MAX(a, b) _mm512_max_ps(a, b)
#define EXPONENT(p, t) \
    _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)))
#include "attention_body.h"
ER_TARGET_END
#endif
