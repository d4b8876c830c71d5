/* AVX-512 with VNNI: one instruction multiplies a quad of 16 outputs with four inputs. */
#include "variant.h"

#if ER_X86
ER_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#define VARIANT er_avx512_vnni
#define VARIANT_NAME "avx512-vnni"
#define RUNS_HERE er_cpu_features().avx512_vnni
#define MULTIPLY_ADD _mm512_dpbusd_epi32
#include "avx512.h"
ER_TARGET_END
#endif
