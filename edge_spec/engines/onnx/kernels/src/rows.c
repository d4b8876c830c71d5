/* Cuts a product into tiles that fit the caches. */
#include "rows.h"

/* Activations that a pass keeps in the first-level cache, over all rows of a tile. */
enum { PASS_BYTES = 512 * ER_ACTIVATION_BYTES };

size_t er_n_tiles(size_t n_rows) { return (n_rows + ER_TILE_ROWS - 1) / ER_TILE_ROWS; }

size_t er_tile_start(size_t n_rows, size_t t) {
    const size_t n_tiles = er_n_tiles(n_rows), height = n_rows / n_tiles, taller = n_rows % n_tiles;
    return t * height + (t < taller ? t : taller);
}

size_t er_activations_bytes(const er_matrix *matrix, size_t n_rows) {
    return n_rows * matrix->n_blocks * (size_t)er_activation_bytes(matrix->kind);
}

void er_quantize(const er_variant *variant, const er_matrix *matrix, const float *x, size_t n_rows, size_t t,
                 uint8_t *activations) {
    const size_t start = er_tile_start(n_rows, t), end = er_tile_start(n_rows, t + 1);
    variant->quantize(matrix->kind, x + start * matrix->n_in, matrix->n_in, (int)(end - start), matrix->n_blocks,
                      activations + er_activations_bytes(matrix, start));
}

/* Groups [first, end) into out; rows out_stride apart. A pass over some of the inputs takes all row tiles before
 * the next pass, so that its weights come from memory once and from the second-level cache afterwards. */
static void multiply_groups(const er_variant *variant, const er_matrix *matrix, const uint8_t *activations,
                            size_t n_rows, size_t first, size_t end, float *out, size_t out_stride) {
    const size_t n_tiles = er_n_tiles(n_rows), tallest = (n_rows + n_tiles - 1) / n_tiles;
    const size_t per_unit = (size_t)er_unit_blocks(matrix->kind), unit_bytes = (size_t)er_unit_bytes(matrix->kind);
    const size_t block_activations = (size_t)er_activation_bytes(matrix->kind);
    const size_t pass = PASS_BYTES / block_activations / tallest / ER_UNIT_BLOCKS * ER_UNIT_BLOCKS;
    for (size_t block = 0; block < matrix->n_blocks; block += pass) {
        const size_t left = matrix->n_blocks - block, n_blocks = left < pass ? left : pass;
        for (size_t t = 0; t < n_tiles; t++) {
            const size_t start = er_tile_start(n_rows, t), height = er_tile_start(n_rows, t + 1) - start;
            const er_tile tile = {
                .kind = matrix->kind,
                .weights = matrix->groups + first * matrix->group_bytes + block / per_unit * unit_bytes,
                .group_bytes = matrix->group_bytes,
                .n_groups = end - first,
                .n_units = n_blocks / per_unit,
                .activations = activations + er_activations_bytes(matrix, start) +
                               block * height * block_activations,
                .n_rows = (int)height,
                .out = out + start * out_stride,
                .out_stride = out_stride,
                .first = block == 0,
                .last = n_blocks == left,
            };
            variant->multiply(&tile);
        }
    }
}

void er_multiply(const er_variant *variant, const er_matrix *matrix, const uint8_t *activations, size_t n_rows,
                 size_t first_group, size_t end_group, float *y) {
    const size_t whole_groups = matrix->n_out / ER_GROUP;
    const size_t whole_end = end_group < whole_groups ? end_group : whole_groups;
    if (n_rows == 0)
        return;
    if (first_group < whole_end)
        multiply_groups(variant, matrix, activations, n_rows, first_group, whole_end, y + first_group * ER_GROUP,
                        matrix->n_out);
    if (whole_end == end_group || end_group <= first_group)
        return;
    /* The last group is partly padding, and variants store whole groups: through a buffer, one tile at a time. */
    const size_t n_last = matrix->n_out % ER_GROUP, at = whole_groups * ER_GROUP;
    float buffer[ER_TILE_ROWS * ER_GROUP];
    for (size_t t = 0; t < er_n_tiles(n_rows); t++) {
        const size_t start = er_tile_start(n_rows, t), height = er_tile_start(n_rows, t + 1) - start;
        multiply_groups(variant, matrix, activations + er_activations_bytes(matrix, start), height,
                        whole_groups, whole_groups + 1, buffer, ER_GROUP);
        for (size_t r = 0; r < height; r++)
            memcpy(y + (start + r) * matrix->n_out + at, buffer + r * ER_GROUP, n_last * sizeof *y);
    }
}
