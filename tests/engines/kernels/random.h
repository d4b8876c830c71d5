/* Numbers for the self tests: SplitMix64, the same on every machine. With FUZZED a fuzzer's bytes choose instead, as far
 * as they reach.
 */
#ifndef RANDOM_H
#define RANDOM_H

#include <stddef.h>
#include <stdint.h>

static uint64_t state = 1;

static uint32_t next(void) {
    state += 0x9E3779B97F4A7C15u;
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

#ifdef FUZZED
static const uint8_t *input, *input_end, *choices;

static size_t below(size_t n) {
    size_t chosen = choices < input_end ? *choices++ : next();
    return (n > 256 && choices < input_end ? chosen << 8 | *choices++ : chosen) % n;
}
#else
static size_t below(size_t n) { return next() % n; }
#endif

/* The same numbers as the last time. */
static inline void restart(uint64_t seed) {
    state = seed;
#ifdef FUZZED
    choices = input;
    for (const uint8_t *each = input; each < input_end; each++)
        state = state * 31 + *each;
#endif
}

/* The settings of round i. */
static inline int settings_of(int i) {
#ifdef FUZZED
    return i + (int)below(128);
#else
    return i;
#endif
}

#endif
