/* Arm with dot products: Raspberry Pi 5, phones since 2018, every Apple Silicon. */
#include "variant.h"

#if ER_ARM_HAS_DOTPROD
ER_TARGET_BEGIN(ER_ARM_DOTPROD)
#define VARIANT er_neon_dotprod
#define VARIANT_NAME "neon-dotprod"
#define RUNS_HERE er_cpu_features().neon_dotprod
#define DOT_PRODUCTS 1
#include "neon.h"
ER_TARGET_END
#endif
