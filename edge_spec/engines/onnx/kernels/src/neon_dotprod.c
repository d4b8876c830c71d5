/* Arm with dot products: Raspberry Pi 5, phones since 2018, every Apple Silicon. */
#include "target.h"

#if ER_ARM_HAS_DOTPROD
#include <arm_neon.h>
#include <string.h>

#include "cpu.h"

ER_TARGET_BEGIN(ER_ARM_DOTPROD)
#define VARIANT er_neon_dotprod
#define VARIANT_NAME "neon-dotprod"
#define RUNS_HERE er_cpu_features().neon_dotprod
#include "neon.h"
ER_TARGET_END
#endif
