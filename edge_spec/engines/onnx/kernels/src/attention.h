/* Attention over paths through a pool of cells, and the order of its sums.
 *
 * A pool's cells come in tiles of 16. A text is a list of tiles: its place j is lane j % 16 of its tile j / 16. The first
 * n_text places hold what is committed, and those after them the nodes of a pending tree, in their order; the text's
 * rows of a call are the last n_rows of these. A row is stored in its cell and sees the n_text cells of its text, the
 * pending nodes above it, and itself: its path, in that order, which is that of plain decoding. The result is a function
 * of the query and of the keys and values along the path alone, whatever other rows and texts a call has, and wherever
 * tiles and the cells of a branch are; all variants compute the same bits (fused multiply-adds throughout):
 *
 *     score_j = sum over d ascending of (query_d * scale) * key_jd, where scale is 1 / sqrt(head_dim), times the scale
 *               of the query's place if queries grow with their place
 *     weight_j = exp(score_j - highest score), by the polynomial in attention_body.h
 *     total = sum of weights in 16 lanes, lane j % 16 in ascending order of j, then lanes pairwise 8, 4, 2, 1 apart
 *     out_d = (sum over j ascending of weight_j * value_jd) * (1 / total)
 *
 * A head may have a sink, a score without a value: it counts for the highest score, and its weight is added to the total
 * last.
 *
 * With a window only the last `window` places of the path count: j starts there, and lanes are numbered as before. So it
 * is where the first `unseen` places do not count for any other.
 *
 * The pool: values [n_head_kv, n_cells, head_dim]; keys [n_head_kv, n_cells / 16, head_dim, 16], so that 16 scores
 * come from vertical sums. n_cells and head_dim are multiples of 16. Both are f32, or both f16: numbers are then
 * rounded to nearest when they are stored, and everything else is the same.
 */
#ifndef EDGE_ROWS_ATTENTION_H
#define EDGE_ROWS_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared.h"

typedef struct {
    const int32_t *tiles;   /* of all its places, pending ones included */
    const int32_t *parents; /* [n_pending], -1 for the text; a parent comes before its children */
    const int32_t *depths;  /* [n_pending] */
    size_t n_text, n_pending;
    size_t first_row, n_rows;
    bool is_chain; /* every node is the parent of the next */
} er_text;

typedef struct {
    const float *qkv;             /* [n_rows, n_row]: queries, and keys and values unless the pool has them already */
    void *keys, *values;          /* float, or uint16_t holding 16-bit floats */
    const float *cosines, *sines; /* [places, n_rotated / 2] */
    const float *query_scales;    /* by place; NULL where queries do not grow */
    const float *sinks;           /* by head; NULL where there are none */
    const er_text *texts;         /* [n_texts], in the order of their rows */
    float *out;                   /* [n_rows, n_head * head_dim] */
    size_t n_texts, n_rows, n_cells;
    size_t n_seen, n_pending; /* the most places that a row sees, itself included, and the most nodes of a text */
    size_t n_head, n_head_kv, head_dim, n_row;
    size_t n_rotated; /* numbers at the beginning of a head that are rotated by position */
    size_t window;    /* 0 for none */
    size_t unseen;    /* first places that no other place sees */
    bool f16;         /* what the pool holds */
    bool interleaved; /* pairs that are rotated are neighbors, else half a head apart */
} er_attention;

/* Floats of scratch for `attend`. */
static inline size_t er_attention_scratch(const er_attention *a) {
    const size_t stride = (a->n_seen + ER_LANES - 1) / ER_LANES * ER_LANES;
    return ER_LANES * (2 * a->head_dim + stride) + a->n_pending;
}

#endif
