/* Single codes and scales of a block, slowly: the meaning of the layout, for the reference. */
#ifndef EDGE_ROWS_CODES_H
#define EDGE_ROWS_CODES_H

#include "half.h"

/* The code of (output, input) in a block; 0 <= output < 16, 0 <= input < 32. */
ER_INLINE int er_code(er_kind kind, const uint8_t *block, int output, int input) {
    const uint8_t *codes = block + er_subscale_bytes(kind);
    const int quad = input / 4, lane = 4 * output + input % 4;
    if (er_code_bits(kind) == 8)
        return codes[64 * quad + lane];
    if (er_code_bits(kind) < 4) {
        const int pair = codes[64 * (quad / 4) + lane] >> 2 * (quad % 4) & 3;
        return er_code_bits(kind) == 3 ? pair | (codes[128 + lane] >> quad & 1) << 2 : pair;
    }
    const int code = codes[64 * (quad / 2) + lane] >> (quad % 2 ? 4 : 0) & 15;
    if (er_code_bits(kind) == 5)
        return code | (codes[256 + lane] >> quad & 1) << 4;
    if (er_code_bits(kind) == 6)
        return code | (codes[256 + 64 * (quad / 4) + lane] >> 2 * (quad % 4) & 3) << 4;
    return code;
}

/* What is multiplied. */
ER_INLINE int er_number(er_kind kind, const uint8_t *block, int output, int input) {
    const int code = er_code(kind, block, output, input);
    return er_has_table(kind) ? er_table(kind)[code] : code;
}

/* The weight of an output in a unit of floats. */
ER_INLINE float er_float(er_kind kind, const uint8_t *unit, int output) {
    if (kind == ER_F32)
        return er_load_f32(unit + 4 * output);
    return kind == ER_F16 ? er_half(unit + 2 * output) : er_bfloat(unit + 2 * output);
}

/* weight = scale * (number - offset) + minimum. Both are exact: 11 bits of d by 8 bits of a sub-scale at most. */
typedef struct {
    float scale, minimum;
} er_scales;

/* half: 0 for the inputs 0..15 of the block, 1 for 16..31. */
ER_INLINE er_scales er_scales_of(er_kind kind, const uint8_t *head, const uint8_t *block, int output, int half) {
    er_scales s = {kind == ER_MXFP4 ? er_bfloat(head + 2 * output) : er_half(head + 2 * output), 0.0f};
    if (er_has_minima(kind))
        s.minimum = er_half(head + 32 + 2 * output);
    if (er_form_of(kind) == ER_HALVES) {
        s.scale *= (float)(int8_t)block[16 * half + output];
    } else if (er_form_of(kind) == ER_MINIMA) {
        s.scale *= (float)(block[16 * half + output] & 15);
        s.minimum *= -(float)(block[16 * half + output] >> 4);
    } else if (kind == ER_IQ4_XS) {
        s.scale *= (float)(int8_t)block[output];
    } else if (er_has_subscales(kind)) {
        s.scale *= (float)block[output];
        s.minimum *= -(float)block[16 + output];
    }
    return s;
}

#endif
