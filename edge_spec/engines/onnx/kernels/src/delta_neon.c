/* Delta nets in registers of 4 floats, which every 64-bit Arm has. */
#include "target.h"

#if ER_ARM
#include <arm_neon.h>

#include "vectors_neon.h"
#define VARIANT er_delta_neon
#define VARIANT_NAME "neon"
#define RUNS_HERE true
#include "delta_body.h"
#endif
