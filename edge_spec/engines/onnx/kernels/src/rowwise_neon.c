/* What happens to rows between products, in registers of 4 floats, which every 64-bit Arm has. */
#include "variant.h"

#if ER_ARM
#include "vectors_neon.h"
#define VARIANT er_rowwise_neon
#define VARIANT_NAME "neon"
#define RUNS_HERE er_cpu_features().neon
#include "rowwise_body.h"
#endif
