/* Any 64-bit Arm, such as those without dot products: Raspberry Pi 3 and 4, phones before 2018. */
#include "variant.h"

#if ER_ARM
#define VARIANT er_neon
#define VARIANT_NAME "neon"
#define RUNS_HERE er_cpu_features().neon
#include "neon.h"
#endif
