/* Registers of 16 floats. */
#include "variant.h"

#if ER_X86
ER_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#include "vectors_avx512.h"
#define VARIANT er_vectors_avx512
#define VARIANT_NAME "avx512"
#define RUNS_HERE er_cpu_features().avx512
#include "vectors_body.h"
ER_TARGET_END
#endif
