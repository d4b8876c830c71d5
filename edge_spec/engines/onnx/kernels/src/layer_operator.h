/* The operator of layers, and what a session may say of it. */
#ifndef EDGE_ROWS_LAYER_OPERATOR_H
#define EDGE_ROWS_LAYER_OPERATOR_H

#include "operator.h"

/* The entry of a session's configuration: how many of its threads share the work; 1 if it is absent. */
#define ER_THREADS "edge_spec.threads"

typedef struct {
    OrtCustomOp operator; /* first: the library knows nothing else */
    size_t n_threads;
} er_layer_operator;

extern const er_layer_operator er_layer_rows;

#endif
