/* A digest of what was computed, to compare machines by: FNV-1a over 32-bit words. Processors give what is no number
 * signs of their own, so one stands for all.
 */
#ifndef DIGEST_H
#define DIGEST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint64_t digest;

static inline void begin_digest(void) { digest = UINT64_C(0xcbf29ce484222325); }

static inline void add_to_digest(const void *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, (const char *)values + 4 * i, sizeof bits);
        if ((bits & 0x7fffffff) > 0x7f800000)
            bits = 0x7fc00000;
        digest = (digest ^ bits) * UINT64_C(0x100000001b3);
    }
}

#endif
