/* What operators with packed weights share: the shapes of their inputs, the weights themselves, and how their work is
 * divided into jobs. */
#ifndef EDGE_ROWS_OPERATOR_INPUTS_H
#define EDGE_ROWS_OPERATOR_INPUTS_H

#include "layout.h"
#include "operator.h"

enum {
    MAX_DIMS = 8,
    /* Groups whose weights a core's second-level cache holds while the tiles of a pass go by. */
    MAX_GROUPS_PER_JOB = 16,
    /* A row more costs as much as a third of what the first one does: work is bytes of weights, times rows + 3. */
    FIRST_ROW = 3,
    MIN_JOB_BYTES = 1 << 18,
    JOBS_AIMED_AT = 32,
    /* With less work, waking other threads costs more than it saves. */
    ALONE_BYTES = 400000,
};

/* Dimensions of a tensor into dims[MAX_DIMS + 1], and the product of all but the last `inner` of them. */
static inline OrtStatus *shape_of(const OrtApi *api, const OrtValue *value, size_t inner, int64_t *dims, size_t *rank,
                                  size_t *n_outer) {
    OrtShape *shape;
    TRY(api->GetTensorTypeAndShape(value, &shape));
    OrtStatus *status = api->GetDimensionsCount(shape, rank);
    if (status == NULL && *rank <= MAX_DIMS)
        status = api->GetDimensions(shape, dims, *rank);
    api->ReleaseTensorTypeAndShapeInfo(shape);
    if (status != NULL)
        return status;
    if (*rank > MAX_DIMS || *rank < inner)
        return refuse(api, "edge_spec: an input has too many or too few dimensions");
    *n_outer = 1;
    for (size_t i = 0; i + inner < *rank; i++)
        *n_outer *= (size_t)dims[i];
    return NULL;
}

static inline OrtStatus *open_weights(const OrtApi *api, const OrtValue *value, int64_t n_in, int64_t n_out,
                                      er_matrix *matrix) {
    int64_t dims[MAX_DIMS + 1];
    size_t rank, n_bytes = 0;
    void *packed;
    TRY(shape_of(api, value, 0, dims, &rank, &n_bytes));
    TRY(api->GetTensorMutableData((OrtValue *)value, &packed));
    const char *wrong = er_open(packed, n_bytes, matrix);
    if (wrong != NULL)
        return refuse(api, wrong);
    if (matrix->n_in != (size_t)n_in || matrix->n_out != (size_t)n_out)
        return refuse(api, "packed weights have another shape than the graph says");
    return NULL;
}

/* How many of n_groups groups a job takes: of few groups few where there are many rows, or threads would wait for the one
 * with a job more. */
static inline size_t groups_per_job(size_t n_groups, size_t group_bytes, size_t n_rows) {
    size_t groups = (n_groups + JOBS_AIMED_AT - 1) / JOBS_AIMED_AT;
    const size_t group_work = group_bytes * (n_rows + FIRST_ROW);
    const size_t least = (MIN_JOB_BYTES + group_work - 1) / group_work;
    groups = groups < least ? least : groups;
    return groups > MAX_GROUPS_PER_JOB ? MAX_GROUPS_PER_JOB : groups;
}

static inline bool is_for_one_thread(size_t weight_bytes, size_t n_rows) {
    return weight_bytes * (n_rows + FIRST_ROW) < ALONE_BYTES;
}

#endif
