/* Single codes and scales of a block, slowly: the meaning of the layout, for the reference. */
#ifndef EDGE_ROWS_CODES_H
#define EDGE_ROWS_CODES_H

#include "half.h"

/* The bits of (output, input) in a part of the codes that has n of each. */
ER_INLINE int er_bits(const uint8_t *part, int n, int output, int input) {
    const int quad = input / 4, lane = 4 * output + input % 4;
    return part[64 * (n * quad / 8) + lane] >> n * quad % 8 & ((1 << n) - 1);
}

/* The code of (output, input) in a block; 0 <= output < 16, 0 <= input < 32. */
ER_INLINE int er_code(er_kind kind, const uint8_t *block, int output, int input) {
    const uint8_t *codes = block + er_subscale_bytes(kind);
    const int low = er_low_bits(kind), more = er_code_bits(kind) - low;
    if (low == 1)
        return 2 * er_bits(codes, low, output, input);
    return er_bits(codes, low, output, input) | (more > 0 ? er_bits(codes + 64 * low, more, output, input) << low : 0);
}

/* What is multiplied. */
ER_INLINE int er_number(er_kind kind, const uint8_t *block, int output, int input) {
    const int code = er_code(kind, block, output, input);
    return er_table(kind) != NULL ? er_table(kind)[code] : code;
}

/* One of some floats of a kind. */
ER_INLINE float er_float(er_kind kind, const uint8_t *floats, int i) {
    if (kind == ER_F32)
        return er_load_f32(floats + 4 * i);
    return kind == ER_F16 ? er_half(floats + 2 * i) : er_bfloat(floats + 2 * i);
}

/* weight = scale * (number - offset) + minimum. Both are exact: 11 bits of d by 8 bits of a sub-scale at most. */
typedef struct {
    float scale, minimum;
} er_scales;

/* half: 0 for the inputs 0..15 of the block, 1 for 16..31. */
ER_INLINE er_scales er_scales_of(er_kind kind, const uint8_t *head, const uint8_t *block, int output, int half) {
    const er_traits traits = er_traits_of(kind);
    er_scales s = {er_float(traits.scales, head, output), 0.0f};
    if (er_has_minima(kind))
        s.minimum = er_half(head + 32 + 2 * output);
    if (er_form_of(kind) == ER_HALVES) {
        s.scale *= (float)(int8_t)block[16 * half + output];
    } else if (er_form_of(kind) == ER_MINIMA) {
        s.scale *= (float)(block[16 * half + output] & 15);
        s.minimum *= -(float)(block[16 * half + output] >> 4);
    } else if (traits.subscales == 16) {
        s.scale *= (float)(int8_t)block[output];
    } else if (traits.subscales != 0) {
        s.scale *= (float)block[output];
        s.minimum *= -(float)block[16 + output];
    }
    return s;
}

#endif
