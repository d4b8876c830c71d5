/* The exponential function, written once for all vector widths: one of the files vectors_*.h comes before it. */
#ifndef EDGE_ROWS_EXPONENTIAL_H
#define EDGE_ROWS_EXPONENTIAL_H

#include "layout.h"

/* exp of numbers from -86 to 86 to about one unit in the last place; what is lower counts as -86. */
ER_INLINE vec exponential(vec x) {
    x = MAX(x, SET1(-86.0f));
    const vec shift = SET1(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
    const vec t = FMA(x, SET1(1.44269504f), shift), n = SUB(t, shift);
    vec r = FMA(n, SET1(-0.693359375f), x);
    r = FMA(n, SET1(2.12194440e-4f), r);
    vec p = SET1(1.9875691500e-4f); /* Cephes, expf */
    p = FMA(p, r, SET1(1.3981999507e-3f));
    p = FMA(p, r, SET1(8.3334519073e-3f));
    p = FMA(p, r, SET1(4.1665795894e-2f));
    p = FMA(p, r, SET1(1.6666665459e-1f));
    p = FMA(p, r, SET1(5.0000001201e-1f));
    p = FMA(MUL(r, r), p, ADD(r, SET1(1.0f)));
    return EXPONENT(p, t);
}

#endif
