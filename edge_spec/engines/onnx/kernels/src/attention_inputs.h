/* Attention over the inputs of an operator. */
#ifndef EDGE_ROWS_ATTENTION_INPUTS_H
#define EDGE_ROWS_ATTENTION_INPUTS_H

#include "attention.h"
#include "operator.h"
#include "vectors.h"

typedef struct {
    int64_t n_head, n_head_kv, head_dim, interleaved, window, unseen;
    const er_vectors *vectors;
} er_heads;

/* What attention reads besides its rows. */
enum { ER_KEYS, ER_VALUES, ER_COSINES, ER_SINES, ER_TREE, ER_QUERY_SCALES, ER_SINKS, ER_N_READ };

/* What is wrong with heads, or NULL. */
const char *er_check_heads(const er_heads *heads);

/* Rows qkv[n_rows][n_row] to out[n_rows][n_head * head_dim]; new keys and values are stored.
 *
 * read: which inputs of the operator these are; the last two may be SIZE_MAX, or inputs that are missing. */
OrtStatus *er_attend_inputs(const OrtApi *api, OrtKernelContext *context, const er_heads *heads,
                          const size_t read[ER_N_READ], const float *qkv, size_t n_rows, size_t n_row, float *out,
                          er_pool *pool);

#endif
