/* Floats of 16 bits as 32-bit ones, exactly, without instructions that a CPU may lack. */
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

ER_INLINE int32_t er_load_i32(const uint8_t *at) {
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

ER_INLINE float er_load_f32(const uint8_t *at) {
    float value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* A bfloat16, the upper half of a 32-bit float. */
ER_INLINE float er_bfloat(const uint8_t *at) {
    return er_float_of_bits((uint32_t)at[0] << 16 | (uint32_t)at[1] << 24);
}

/* A 32-bit float as the nearest 16-bit one, ties to even; too large ones as infinity. */
ER_INLINE uint16_t er_to_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) /* NaN */
        return (uint16_t)(sign | 0x7e00u);
    if (size >= 0x477ff000u) /* 65520, half-way from the largest to what would follow */
        return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u) { /* below 2^-14, a multiple of 2^-24: adding 2^23 rounds to a whole number of them */
        const float units = er_float_of_bits(size) * 0x1p24f + 0x1p23f;
        return (uint16_t)(sign | (uint32_t)(units - 0x1p23f));
    }
    return (uint16_t)(sign | (size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13);
}

#endif
