/* The operator of experts, and what a session may say of it. */
#ifndef EDGE_ROWS_EXPERTS_OPERATOR_H
#define EDGE_ROWS_EXPERTS_OPERATOR_H

#include "operator.h"

/* The entry of a session's configuration: how many experts of each layer stay in memory, a number above 0. */
#define ER_HELD_EXPERTS "edge_spec.held_experts"
/* Another, given if the others leave the system's cache of files as well, see pages.h. */
#define ER_FORGETS_EXPERTS "edge_spec.forgets_experts"

typedef struct {
    OrtCustomOp operator; /* first: the library knows nothing else */
    size_t held; /* 0 for all */
    bool forgets;
} er_experts_operator;

extern const er_experts_operator er_expert_rows;

#endif
