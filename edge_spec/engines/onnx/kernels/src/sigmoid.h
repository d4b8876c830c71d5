/* The logistic function and softplus, written once for all vector widths: one of the files vectors_*.h comes before it. */
#ifndef EDGE_ROWS_SIGMOID_H
#define EDGE_ROWS_SIGMOID_H

#include "exponential.h"

/* 1 / (1 + exp(-x)); exp's argument is bounded, so that it is never infinite. */
ER_INLINE vec sigmoid(vec x) {
    return DIV(SET1(1.0f), ADD(SET1(1.0f), exponential(MIN(SET1(86.0f), SUB(SET1(0.0f), x)))));
}

/* log(1 + exp(x)) = max(x, 0) + log(1 + t), t = exp(-|x|): twice the odd powers of s = t / (2 + t), which is at most a
 * third, each divided by its exponent. */
ER_INLINE vec softplus(vec x) {
    const vec t = exponential(MIN(x, SUB(SET1(0.0f), x)));
    const vec s = DIV(t, ADD(SET1(2.0f), t)), square = MUL(s, s);
    vec p = SET1(1.0f / 15);
    p = FMA(p, square, SET1(1.0f / 13));
    p = FMA(p, square, SET1(1.0f / 11));
    p = FMA(p, square, SET1(1.0f / 9));
    p = FMA(p, square, SET1(1.0f / 7));
    p = FMA(p, square, SET1(1.0f / 5));
    p = FMA(p, square, SET1(1.0f / 3));
    p = FMA(p, square, SET1(1.0f));
    return FMA(ADD(s, s), p, MAX(SET1(0.0f), x));
}

#endif
