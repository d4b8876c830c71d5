/* What is computed in registers of floats besides products, in one variant. */
#ifndef EDGE_ROWS_VECTORS_H
#define EDGE_ROWS_VECTORS_H

#include "attention.h"
#include "convolution.h"
#include "delta.h"

typedef struct {
    const char *name;
    bool (*runs_here)(void);
    /* Attention: store keys and values of `n_rows` rows of one head in the pool. */
    void (*store)(const er_attention *a, size_t kv_head, size_t first_row, size_t n_rows);
    /* Outputs of `n_rows` rows for some heads of queries, which share one head of keys, whose rows are all stored. */
    void (*attend)(const er_attention *a, size_t first_head, size_t n_heads, size_t first_row, size_t n_rows,
                   float *scratch);
    /* Convolutions: rows [first, end) of all, for some channels, into out[end - first][n_channels]. With gates only new
     * rows. */
    void (*convolve)(const er_convolution *c, size_t first, size_t end, size_t channel, size_t n_channels, float *out);
    /* Delta nets: all rows of one head. */
    void (*answer)(const er_delta *d, size_t head, float *scratch);
    /* Experts: x = exp(x - less). n is a multiple of 16, as is that of `gate`. */
    void (*weigh)(float *x, float less, size_t n);
    /* x = 1 / (1 + exp(-x)), n of them. */
    void (*squash)(float *x, size_t n);
    /* gate = hidden, of gate and up. limit: 0 for none. */
    void (*gate)(float *gate, const float *up, size_t n, float alpha, float limit);
    /* y = fma(share, x, y), n numbers. */
    void (*add)(float share, const float *x, size_t n, float *y);
} er_vectors;

/* The fastest variant that runs here and whose name `name` begins with, as "avx512-vnni" begins with "avx512"; any if
 * `name` is "". NULL if there is none. */
const er_vectors *er_find_vectors(const char *name);

#endif
