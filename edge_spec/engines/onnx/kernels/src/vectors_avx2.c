/* Registers of 8 floats. */
#include "variant.h"

#if ER_X86
ER_TARGET_BEGIN("avx2,fma,f16c")
#include "vectors_avx2.h"
#define VARIANT er_vectors_avx2
#define VARIANT_NAME "avx"
#define RUNS_HERE er_cpu_features().avx2
#include "vectors_body.h"
ER_TARGET_END
#endif
