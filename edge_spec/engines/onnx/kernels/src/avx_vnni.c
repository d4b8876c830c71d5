/* AVX2 with VNNI: laptops since 2021. */
#include "variant.h"

#if ER_X86_HAS_AVX_VNNI
ER_TARGET_BEGIN("avx2,fma,f16c,avxvnni")
#define VARIANT er_avx_vnni
#define VARIANT_NAME "avx-vnni"
#define RUNS_HERE er_cpu_features().avx_vnni
#define MULTIPLY_ADD _mm256_dpbusd_avx_epi32
#include "avx256.h"
ER_TARGET_END
#endif
