/* What happens to rows between products, in registers of 8 floats. Wider ones would not help: it is little work. */
#include "target.h"

#if ER_X86
#include <immintrin.h>

#include "cpu.h"

ER_TARGET_BEGIN("avx2,fma,f16c")
#include "vectors_avx2.h"
#define VARIANT er_rowwise_avx2
#define VARIANT_NAME "avx2"
#define RUNS_HERE er_cpu_features().avx2
#include "rowwise_body.h"
ER_TARGET_END
#endif
