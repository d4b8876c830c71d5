/* The reference: rows.h and layout.h word for word in plain C. It runs everywhere, slowly, and tests compare every
 * other variant with it, bit for bit. */
#include <math.h>

#include "codes.h"
#include "rows.h"

static bool runs_here(void) { return true; }

static void quantize(er_kind kind, const float *x, size_t stride, int n_rows, size_t n_blocks, uint8_t *tile) {
    er_quantize_tile(er_quantize_block, kind, x, stride, n_rows, n_blocks, tile);
}

static int32_t sum_of(er_kind kind, const uint8_t *block, int output, const int8_t *q, int from, int to) {
    int32_t sum = 0;
    for (int i = from; i < to; i++)
        sum += q[i] * (er_number(kind, block, output, i) - er_traits_of(kind).offset);
    return sum;
}

static float add_block(er_kind kind, const uint8_t *head, const uint8_t *block, int output,
                       const uint8_t *activations, int n_rows, int row, float acc) {
    if (er_form_of(kind) == ER_PLAIN)
        return fmaf(er_load_f32(activations + 4 * row), er_float(kind, block, output), acc);
    const int8_t *q = (const int8_t *)activations + 32 * row;
    const uint8_t *scales = activations + 32 * n_rows, *firsts = scales + 4 * n_rows, *seconds = firsts + 4 * n_rows;
    const float scale = er_load_f32(scales + 4 * row);
    const er_scales s = er_scales_of(kind, head, block, output, 0);
    if (er_form_of(kind) == ER_HALVES || er_form_of(kind) == ER_MINIMA) {
        const er_scales s1 = er_scales_of(kind, head, block, output, 1);
        const float d0 = s.scale * scale, d1 = s1.scale * scale;
        acc = fmaf((float)sum_of(kind, block, output, q, 0, 16), d0, acc);
        acc = fmaf((float)sum_of(kind, block, output, q, 16, 32), d1, acc);
        if (er_form_of(kind) == ER_HALVES)
            return acc;
        acc = fmaf(s.minimum, er_load_f32(firsts + 4 * row), acc);
        return fmaf(s1.minimum, er_load_f32(seconds + 4 * row), acc);
    }
    const float d = s.scale * scale;
    acc = fmaf((float)sum_of(kind, block, output, q, 0, 32), d, acc);
    if (er_form_of(kind) == ER_MINIMUM)
        acc = fmaf(s.minimum, er_load_f32(firsts + 4 * row), acc);
    return acc;
}

static void multiply(const er_tile *t) {
    const er_kind kind = t->kind;
    const size_t step = (size_t)(er_activation_bytes(kind) * t->n_rows);
    for (size_t g = 0; g < t->n_groups; g++)
        for (int row = 0; row < t->n_rows; row++)
            for (int output = 0; output < ER_GROUP; output++) {
                float *out = t->out + (size_t)row * t->out_stride + g * ER_GROUP + (size_t)output;
                const uint8_t *head = t->weights + g * t->group_bytes, *activations = t->activations;
                float acc = t->first ? 0.0f : *out;
                for (size_t u = 0; u < t->n_units; u++, head += er_unit_bytes(kind))
                    for (int b = 0; b < er_unit_blocks(kind); b++, activations += step)
                        acc = add_block(kind, head, head + er_head_bytes(kind) + b * er_block_bytes(kind), output,
                                        activations, t->n_rows, row, acc);
                *out = t->last && isnan(acc) ? er_float_of_bits(ER_QUIET_NAN) : acc;
            }
}

const er_variant er_reference = {"reference", runs_here, quantize, multiply};
