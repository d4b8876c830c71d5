/* AVX-512 without VNNI: servers from 2017 to 2019. */
#include "variant.h"

#if ER_X86
ER_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define VARIANT er_avx512
#define VARIANT_NAME "avx512"
#define RUNS_HERE er_cpu_features().avx512
#include "avx512.h"
ER_TARGET_END
#endif
