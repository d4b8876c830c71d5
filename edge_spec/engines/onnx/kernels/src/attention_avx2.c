/* Attention in registers of 8 floats. */
#include "target.h"

#if ER_X86
#include <immintrin.h>

#include "cpu.h"

ER_TARGET_BEGIN("avx2,fma,f16c")
#include "vectors_avx2.h"
#define VARIANT er_attention_avx2
#define VARIANT_NAME "avx2"
#define RUNS_HERE er_cpu_features().avx2
#define SCORE_QUERIES 4
#define VALUE_QUERIES 2
#include "attention_body.h"
ER_TARGET_END
#endif
