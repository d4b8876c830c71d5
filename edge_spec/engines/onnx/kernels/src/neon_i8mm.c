/* Arm with 8-bit matrix products: Apple M2 and later, phones since 2021, Graviton 3. */
#include "variant.h"

#if ER_ARM_HAS_I8MM
ER_TARGET_BEGIN(ER_ARM_I8MM)
#define VARIANT er_neon_i8mm
#define VARIANT_NAME "neon-i8mm"
#define RUNS_HERE er_cpu_features().neon_i8mm
#define DOT_PRODUCTS 1
#define PAIRS 1
#include "neon.h"
ER_TARGET_END
#endif
