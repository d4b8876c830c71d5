/* Registers of 4 floats, which every 64-bit Arm has. */
#include "variant.h"

#if ER_ARM
#include "vectors_neon.h"
#define VARIANT er_vectors_neon
#define VARIANT_NAME "neon"
#define RUNS_HERE er_cpu_features().neon
#include "vectors_body.h"
#endif
