/* Opening a packed matrix, and reading its weights one by one. */
#include "layout.h"

#include "codes.h"
#include "half.h"

const char *er_open(const void *packed, size_t n_bytes, er_matrix *matrix) {
    const uint8_t *bytes = packed;
    uint32_t version, kind;
    uint64_t n_out, n_in, declared;
    if (packed == NULL || n_bytes < ER_HEADER_BYTES)
        return "packed weights are shorter than their header";
    if (memcmp(bytes, "EDGEROWS", 8) != 0)
        return "these are no packed weights: they do not start with EDGEROWS";
    memcpy(&version, bytes + 8, sizeof version);
    memcpy(&kind, bytes + 12, sizeof kind);
    memcpy(&n_out, bytes + 16, sizeof n_out);
    memcpy(&n_in, bytes + 24, sizeof n_in);
    memcpy(&declared, bytes + 32, sizeof declared);
    if (version != ER_VERSION)
        return "packed weights have another version of the layout";
    if (er_code_bits((er_kind)kind) == 0)
        return "packed weights are of an unknown kind";
    /* With both below 2^31 no product below leaves 64 bits. */
    if (n_out < 1 || n_in < 1 || n_out >= UINT64_C(1) << 31 || n_in >= UINT64_C(1) << 31)
        return "packed weights name an impossible shape";
    const uint64_t block_inputs = (uint64_t)er_block_inputs((er_kind)kind);
    if (n_in % (block_inputs * (uint64_t)er_unit_blocks((er_kind)kind)) != 0)
        return "packed weights name a number of inputs that is no multiple of their block";
    const uint64_t n_groups = (n_out + ER_GROUP - 1) / ER_GROUP, n_blocks = n_in / block_inputs;
    const uint64_t group_bytes =
        n_blocks / (uint64_t)er_unit_blocks((er_kind)kind) * (uint64_t)er_unit_bytes((er_kind)kind);
    const uint64_t expected = ER_HEADER_BYTES + n_groups * group_bytes;
    if (declared != expected)
        return "packed weights name a size that does not fit their shape";
    if ((uint64_t)n_bytes != expected)
        return "packed weights are longer or shorter than their header says";
    *matrix = (er_matrix){
        .groups = bytes + ER_HEADER_BYTES,
        .kind = (er_kind)kind,
        .n_out = (size_t)n_out,
        .n_in = (size_t)n_in,
        .n_groups = (size_t)n_groups,
        .n_blocks = (size_t)n_blocks,
        .group_bytes = (size_t)group_bytes,
    };
    return NULL;
}

void er_weights(const er_matrix *matrix, size_t row, float *values) {
    const er_kind kind = matrix->kind;
    const int output = (int)(row % ER_GROUP), per_unit = er_unit_blocks(kind), offset = er_traits_of(kind).offset;
    const uint8_t *group = matrix->groups + row / ER_GROUP * matrix->group_bytes;
    for (size_t b = 0; b < matrix->n_blocks; b++) {
        const uint8_t *head = group + b / (size_t)per_unit * (size_t)er_unit_bytes(kind);
        const uint8_t *block = head + er_head_bytes(kind) + b % (size_t)per_unit * (size_t)er_block_bytes(kind);
        if (er_is_plain(kind)) {
            values[b] = er_float(kind, block, output);
            continue;
        }
        for (int i = 0; i < ER_BLOCK; i++) {
            const er_scales s = er_scales_of(kind, head, block, output, i / 16);
            const float scaled = s.scale * (float)(er_number(kind, block, output, i) - offset);
            values[b * ER_BLOCK + (size_t)i] = er_has_minima(kind) ? scaled + s.minimum : scaled;
        }
    }
}
