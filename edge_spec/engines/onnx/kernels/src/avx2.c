/* AVX2 with FMA: most laptops and servers since 2013. */
#include "variant.h"

#if ER_X86
ER_TARGET_BEGIN("avx2,fma,f16c")
#define VARIANT er_avx2
#define VARIANT_NAME "avx2"
#define RUNS_HERE er_cpu_features().avx2
#include "avx256.h"
ER_TARGET_END
#endif
