/* Experts in registers of 16 floats. */
#include "target.h"

#if ER_X86
#include <immintrin.h>

#include "cpu.h"

ER_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#include "vectors_avx512.h"
#define VARIANT er_experts_avx512
#define VARIANT_NAME "avx512"
#define RUNS_HERE er_cpu_features().avx512
#include "experts_body.h"
ER_TARGET_END
#endif
