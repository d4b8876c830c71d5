/* Rows times packed weights: the one order in which an output is summed, and what a variant provides.
 *
 * For one row and one output, `acc` starts at +0 and takes the blocks in the order of the inputs. `sum` is the
 * exact whole number sum of q * (number - offset), over 32 inputs or over 16; it stays below 2^24, so its conversion
 * to float is exact too. Every line is one fused multiply-add, rounded once; a * b inside it is rounded before:
 *
 *     ER_PLAIN     acc = fma(x, weight, acc)
 *     ER_OFFSET    acc = fma(sum, d * scale, acc)
 *     ER_MINIMUM   acc = fma(sum, d * scale, acc);  acc = fma(m, scale * sum of q, acc)
 *     ER_HALVES    acc = fma(sum of half 0, d0 * scale, acc);  acc = fma(sum of half 1, d1 * scale, acc)
 *     ER_MINIMA    as ER_HALVES, then
 *                  acc = fma(m0, scale * sum of q in half 0, acc);  acc = fma(m1, scale * sum of q in half 1, acc)
 *
 * where d, d0, d1 are the block's scales with sub-scales multiplied in and m, m0, m1 its minima (-dmin * min for kinds
 * named _K). A finished acc that is NaN is stored as the NaN 0x7fc00000, whatever its sign and payload were.
 *
 * Nothing here depends on how many rows are computed together, on how inputs are split between passes, on threads
 * or on the CPU. It assumes the default floating-point environment: round to nearest, denormals kept.
 */
#ifndef EDGE_ROWS_ROWS_H
#define EDGE_ROWS_ROWS_H

#include "activations.h"

/* A tile: up to 16 rows, some groups, some consecutive units of each. */
typedef struct {
    er_kind kind;
    const uint8_t *weights;     /* the first unit of the first group */
    size_t group_bytes;         /* from a group to the next */
    size_t n_groups, n_units;   /* n_units: of each group */
    const uint8_t *activations; /* the tile's first block */
    int n_rows;
    float *out;                 /* [n_rows][16 * n_groups], rows out_stride floats apart */
    size_t out_stride;
    bool first, last;           /* first: start at +0 instead of at *out; last: then settle NaNs */
} er_tile;

typedef struct {
    const char *name;
    bool (*runs_here)(void);
    void (*quantize)(er_kind kind, const float *x, size_t stride, int n_rows, size_t n_blocks, uint8_t *tile);
    void (*multiply)(const er_tile *tile);
} er_variant;

/* The fastest first, the reference last; those that this compiler or machine type lacks are not there. */
extern const er_variant *const er_variants[];
extern const int er_n_variants;
extern const er_variant er_reference;

/* The variant of that name, or the fastest that runs here for NULL or ""; NULL if it is unknown or cannot run. */
const er_variant *er_find_variant(const char *name);

/* Bytes of scratch for n_rows rows of inputs of a matrix. */
size_t er_activations_bytes(const er_matrix *matrix, size_t n_rows);

/* Rows are cut into tiles of nearly equal height: how many there are, and where tile t starts. */
size_t er_n_tiles(size_t n_rows);
size_t er_tile_start(size_t n_rows, size_t t);

/* Quantizes the rows of tile t. x: [n_rows][n_in]; activations: er_activations_bytes(matrix, n_rows). */
void er_quantize(const er_variant *variant, const er_matrix *matrix, const float *x, size_t n_rows, size_t t,
                 uint8_t *activations);

/* y[row][output] for all rows and the outputs of groups first_group .. end_group - 1. y: [n_rows][n_out]. */
void er_multiply(const er_variant *variant, const er_matrix *matrix, const uint8_t *activations, size_t n_rows,
                 size_t first_group, size_t end_group, float *y);

/* A variant from multiply_F32, multiply_Q4_0 and so on, one of each kind, so that each is compiled with the kind as a
 * constant, and from a quantizer of blocks. */
#define ER_CASE(name_, ...) case ER_##name_: multiply_##name_(t); break;
#define ER_DEFINE_VARIANT(variant_, name_, runs_here_, quantize_block_)                                        \
    static bool runs_here(void) { return runs_here_; }                                                         \
    static void quantize(er_kind kind, const float *x, size_t stride, int n_rows, size_t n_blocks,             \
                         uint8_t *tile) {                                                                      \
        er_quantize_tile(quantize_block_, kind, x, stride, n_rows, n_blocks, tile);                            \
    }                                                                                                          \
    static void multiply(const er_tile *t) {                                                                   \
        switch (t->kind) { ER_KINDS(ER_CASE) }                                                                 \
    }                                                                                                          \
    const er_variant variant_ = {name_, runs_here, quantize, multiply};

#endif
