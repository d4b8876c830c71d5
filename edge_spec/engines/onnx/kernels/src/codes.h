/* Single codes and scales of a block, slowly: the meaning of the layout, for the reference. */
#ifndef EDGE_ROWS_CODES_H
#define EDGE_ROWS_CODES_H

#include "half.h"

/* The code of (output, input) in a block; 0 <= output < 16, 0 <= input < 32. */
ER_INLINE int er_code(er_kind kind, const uint8_t *block, int output, int input) {
    const uint8_t *codes = block + (er_has_subscales(kind) ? 32 : 0);
    const int quad = input / 4, lane = 4 * output + input % 4;
    if (er_code_bits(kind) == 8)
        return codes[64 * quad + lane];
    const int code = codes[64 * (quad / 2) + lane] >> (quad % 2 ? 4 : 0) & 15;
    if (er_code_bits(kind) == 5)
        return code | (codes[256 + lane] >> quad & 1) << 4;
    if (er_code_bits(kind) == 6)
        return code | (codes[256 + 64 * (quad / 4) + lane] >> 2 * (quad % 4) & 3) << 4;
    return code;
}

/* weight = scale * (code - offset) + minimum. Both are exact: 11 bits of d by 8 bits of a sub-scale at most. */
typedef struct {
    float scale, minimum;
} er_scales;

/* half: 0 for the inputs 0..15 of the block, 1 for 16..31. */
ER_INLINE er_scales er_scales_of(er_kind kind, const uint8_t *head, const uint8_t *block, int output, int half) {
    er_scales s = {er_half(head + 2 * output), 0.0f};
    if (er_form_of(kind) == ER_MINIMUM)
        s.minimum = er_half(head + 32 + 2 * output);
    if (kind == ER_Q6_K) {
        s.scale *= (float)(int8_t)block[16 * half + output];
    } else if (er_has_subscales(kind)) {
        s.scale *= (float)block[output];
        s.minimum *= -(float)block[16 + output];
    }
    return s;
}

#endif
