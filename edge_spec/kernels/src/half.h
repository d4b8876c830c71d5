/* A 16-bit float as a 32-bit one, exactly, without instructions that a CPU may lack. */
#ifndef EDGE_ROWS_HALF_H
#define EDGE_ROWS_HALF_H

#include <string.h>

#include "layout.h"

ER_INLINE float er_float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ER_INLINE float er_half(const uint8_t *at) {
    const uint32_t half = (uint32_t)at[0] | (uint32_t)at[1] << 8;
    const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 1023u;
    if (exponent == 31u) /* infinity, or NaN made quiet as the conversion instructions do */
        return er_float_of_bits(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x00400000u : 0u));
    if (exponent == 0u) { /* zero or denormal: fraction * 2^-24, a normal 32-bit float */
        const float value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    return er_float_of_bits(sign | (exponent + 112u) << 23 | fraction << 13);
}

#endif
