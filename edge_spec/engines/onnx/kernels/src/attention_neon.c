/* Attention in registers of 4 floats, which every 64-bit Arm has. */
#include "target.h"

#if ER_ARM
#include <arm_neon.h>

#include "vectors_neon.h"
#define VARIANT er_attention_neon
#define VARIANT_NAME "neon"
#define RUNS_HERE true
#define SCORE_QUERIES 4
#define VALUE_QUERIES 4
#include "attention_body.h"
#endif
