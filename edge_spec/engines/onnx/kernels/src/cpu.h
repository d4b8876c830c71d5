/* What this CPU and operating system support. */
#ifndef EDGE_ROWS_CPU_H
#define EDGE_ROWS_CPU_H

#include <stdbool.h>

typedef struct {
    bool avx2;        /* with FMA and F16C */
    bool avx_vnni;
    bool avx512; /* F, BW, DQ and VL */
    bool avx512_vnni;
    bool neon; /* which every 64-bit Arm has */
    bool neon_dotprod, neon_i8mm;
} er_cpu;

/* What the environment variable EDGE_SPEC_WITHOUT lists is left out, such as "avx512,avx-vnni": so another processor is
 * tried on this one. Not cached: callers ask once per matrix, and nothing needs to be shared between threads. */
er_cpu er_cpu_features(void);

#endif
