/* AVX-512's VNNI on 256-bit registers: the source of avx_vnni.c where that instruction has its other encoding.
 * Never the fastest; with it, servers can test what laptops run. */
#include "variant.h"

#if ER_X86
ER_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512vl,avx512vnni")
#define VARIANT er_avx512_vnni_256
#define VARIANT_NAME "avx512-vnni-256"
#define RUNS_HERE er_cpu_features().avx512_vnni
#define MULTIPLY_ADD _mm256_dpbusd_epi32
#include "avx256.h"
ER_TARGET_END
#endif
