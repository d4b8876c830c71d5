/* Short convolutions in registers of 8 floats. */
#include "target.h"

#if ER_X86
#include <immintrin.h>

#include "cpu.h"

ER_TARGET_BEGIN("avx2,fma,f16c")
#include "vectors_avx2.h"
#define VARIANT er_convolution_avx2
#define VARIANT_NAME "avx"
#define RUNS_HERE er_cpu_features().avx2
#include "convolution_body.h"
ER_TARGET_END
#endif
