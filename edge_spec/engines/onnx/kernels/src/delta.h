/* Gated delta nets: heads with a matrix that forgets, is corrected by each row, and answers it; the order of the sums.
 *
 * A row has, after a short convolution, queries and keys of n_head_k heads and values of n_head heads, `size` numbers
 * each; head h uses the queries and keys of head h % n_head_k. Besides it has two scores of every head, alpha and beta,
 * and `size` numbers z of every head that gate its output. With the state S[size][size] of a head, first all zeros:
 *
 *     q, k = q, k * (1 / sqrt(sum of squares + epsilon))
 *     decay = exp(rate * softplus(alpha + step)), at most exp(86); share = 1 / (1 + exp(-beta))
 *     wrong_j = (value_j - sum over i of (S_ij * decay) * k_i) * share
 *     S_ij = fma(k_i, wrong_j, S_ij * decay)
 *     out_j = (sum over i of S_ij * q_i) * (1 / sqrt(size))
 *     out_j = out_j * (1 / sqrt(mean of squares of out + epsilon)) * weight_j * (z_j * (1 / (1 + exp(-z_j))))
 *
 * Sums over i are of fused multiply-adds in four parts, i % 4 in ascending order, then (0 + 1) + (2 + 3). Sums of squares
 * are in 16 lanes, j % 16 in ascending order, then pairwise 8, 4, 2, 1 apart. Exponentials are those of exponential.h,
 * softplus is that of sigmoid.h.
 *
 * A column j of a state needs no other one: 16 at a time go through all rows of a call and stay in the first-level cache.
 * The rows that the state takes in change it in place; the others change a copy of these columns, which is dropped.
 */
#ifndef EDGE_ROWS_DELTA_H
#define EDGE_ROWS_DELTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared.h"

typedef struct {
    const float *rows;   /* queries, keys and values, [n_rows, n_channels] */
    const float *scores; /* alpha and beta, [n_rows, 2 * n_head] */
    const float *z;      /* of the rows that are answered, [n_rows - n_silent, n_head * size] */
    float *states;       /* [n_head, size / 16, size, 16]: S_ij of 16 columns side by side */
    float *out;          /* [n_rows - n_silent, n_head * size] */
    const float *steps, *rates; /* by head */
    const float *weights;       /* [size] */
    float epsilon;
    size_t n_rows, n_silent, n_taken; /* the first n_silent rows have no output, the state takes in the first n_taken */
    size_t n_head, n_head_k, size;
} er_delta;

static inline size_t er_delta_channels(const er_delta *d) { return (2 * d->n_head_k + d->n_head) * d->size; }

/* Floats of scratch for `answer`. */
static inline size_t er_delta_scratch(size_t n_rows, size_t size) {
    const size_t whole = (n_rows + ER_COLUMNS - 1) / ER_COLUMNS * ER_COLUMNS;
    return 2 * whole + 2 * n_rows * size + size * ER_COLUMNS;
}

#endif
