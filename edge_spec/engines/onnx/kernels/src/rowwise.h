/* What happens to a row between products, number by number or over a whole row. All variants compute the same bits; they
 * are those of ONNX Runtime 1.32 with AVX2, whose operators these replace:
 *
 *     norm           SimplifiedLayerNormalization: squares are summed by fused multiply-adds in 8 lanes, lanes then pairwise
 *                    4, 2, 1 apart, then what is left over; y = x * (1 / m) * weight, where m = sqrt(sum / n + epsilon).
 *                    Rows of fewer than 16 numbers: as norm_in_order
 *     norm_in_order  SkipSimplifiedLayerNormalization: squares are rounded and summed one after the other;
 *                    y = x / m * weight
 *     sigmoid        x is bounded by +-18; a rational function of degrees 9 and 10, fused multiply-adds; bounded by 0 and 1
 *     silu           x * sigmoid(x)
 *     gelu           0.5 * x * (tanh(x * (0.0356774081 * x * x + 0.797884561)) + 1); tanh is a rational function of degrees
 *                    13 and 6 of its argument bounded by +-9
 */
#ifndef EDGE_ROWS_ROWWISE_H
#define EDGE_ROWS_ROWWISE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    const char *name;
    bool (*runs_here)(void);
    void (*norm)(const float *x, const float *weights, float *y, size_t n, float epsilon);
    /* Of some rows, which lie so many floats apart. */
    void (*norm_in_order)(const float *x, size_t x_stride, const float *weights, float *y, size_t y_stride, size_t rows,
                          size_t n, float epsilon);
    void (*add)(const float *a, const float *b, float *y, size_t n);
    void (*multiply)(const float *a, const float *b, float *y, size_t n);
    void (*scale)(const float *x, float factor, float *y, size_t n);
    void (*sigmoid)(const float *x, float *y, size_t n);
    void (*silu)(const float *x, float *y, size_t n);
    void (*gelu)(const float *x, float *y, size_t n);
    void (*relu)(const float *x, float *y, size_t n);
} er_rowwise_variant;

/* The variant of that name, "" for the fastest; NULL if there is none or it cannot run here. */
const er_rowwise_variant *er_rowwise_find(const char *name);

#endif
