/* Numbers for the self tests: SplitMix64, the same on every machine. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

static uint64_t state = 1;

static uint32_t next(void) {
    state += 0x9E3779B97F4A7C15u;
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

#endif
