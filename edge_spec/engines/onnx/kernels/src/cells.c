/* Copies cells of a pool of keys and values, see attention.h for their layout. */
#include <stdint.h>
#include <string.h>

#include "attention.h"
#include "export.h"

/* One cell after the other, in every layer and head.
 *
 * keys, values: an array of each layer, of numbers of `size` bytes (2 or 4)
 * cells: [n, 2], the one that is copied and the one that it is copied to
 */
ER_EXPORT void edge_rows_copy_cells(void *const *keys, void *const *values, size_t n_layers, size_t n_heads,
                                    size_t n_cells, size_t head_dim, size_t size, const int64_t *cells, size_t n) {
    for (size_t layer = 0; layer < n_layers; layer++)
        for (size_t head = 0; head < n_heads; head++) {
            char *k = (char *)keys[layer] + head * n_cells * head_dim * size;
            char *v = (char *)values[layer] + head * n_cells * head_dim * size;
            for (size_t i = 0; i < n; i++) {
                const size_t source = (size_t)cells[2 * i], target = (size_t)cells[2 * i + 1];
                const char *from = k + (source / ER_LANES * ER_LANES * head_dim + source % ER_LANES) * size;
                char *to = k + (target / ER_LANES * ER_LANES * head_dim + target % ER_LANES) * size;
                for (size_t d = 0; d < head_dim; d++)
                    if (size == 2)
                        ((uint16_t *)to)[d * ER_LANES] = ((const uint16_t *)from)[d * ER_LANES];
                    else
                        ((uint32_t *)to)[d * ER_LANES] = ((const uint32_t *)from)[d * ER_LANES];
                memmove(v + target * head_dim * size, v + source * head_dim * size, head_dim * size);
            }
        }
}
