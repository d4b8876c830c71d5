/* What the library offers to Python. Errors are static strings; NULL is success. */
#include <stdlib.h>

#include "export.h"
#include "rows.h"

/* What shared.h said when this was compiled: an older library would not know what is new. */
ER_EXPORT int edge_rows_version(void) { return ER_VERSION; }
ER_EXPORT int edge_rows_operators(void) { return ER_OPERATORS; }

/* The name of variant i, fastest first; NULL past the end. */
ER_EXPORT const char *edge_rows_variant(int i) { return i >= 0 && i < er_n_variants ? er_variants[i]->name : NULL; }

ER_EXPORT int edge_rows_variant_runs_here(int i) {
    return i >= 0 && i < er_n_variants && er_variants[i]->runs_here();
}

ER_EXPORT const char *edge_rows_check(const void *packed, size_t n_bytes) {
    er_matrix matrix;
    return er_open(packed, n_bytes, &matrix);
}

/* y[n_rows][n_out] = x[n_rows][n_in] times the matrix, for the outputs of groups first_group .. end_group - 1 only,
 * so that several threads can share a product. variant: a name, or NULL for the fastest. */
ER_EXPORT const char *edge_rows_multiply(const void *packed, size_t n_bytes, const char *variant, const float *x,
                                         size_t n_rows, size_t first_group, size_t end_group, float *y) {
    er_matrix matrix;
    const char *wrong = er_open(packed, n_bytes, &matrix);
    const er_variant *chosen = er_find_variant(variant);
    if (wrong != NULL)
        return wrong;
    if (chosen == NULL)
        return "there is no such variant, or it cannot run on this CPU";
    if (end_group > matrix.n_groups)
        return "the last group is out of range";
    if (n_rows == 0)
        return NULL;
    uint8_t *activations = malloc(er_activations_bytes(&matrix, n_rows));
    if (activations == NULL)
        return "out of memory for the activations";
    for (size_t t = 0; t < er_n_tiles(n_rows); t++)
        er_quantize(chosen, &matrix, x, n_rows, t, activations);
    er_multiply(chosen, &matrix, activations, n_rows, first_group, end_group, y);
    free(activations);
    return NULL;
}

/* The weights of outputs first .. first + n - 1 as floats: values[n][n_in]. */
ER_EXPORT const char *edge_rows_weights(const void *packed, size_t n_bytes, size_t first, size_t n, float *values) {
    er_matrix matrix;
    const char *wrong = er_open(packed, n_bytes, &matrix);
    if (wrong != NULL)
        return wrong;
    if (first > matrix.n_out || n > matrix.n_out - first)
        return "the outputs asked for are out of range";
    for (size_t i = 0; i < n; i++)
        er_weights(&matrix, first + i, values + i * matrix.n_in);
    return NULL;
}
