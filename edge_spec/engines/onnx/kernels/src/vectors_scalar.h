/* One float at a time; see vectors_avx512.h. */
#include <math.h>
#include <string.h>

#include "half.h"

#define vec float
#define WIDTH 1
#define SCORE_QUERIES 4
#define VALUE_QUERIES 2
#define LOAD(at) (*(at))
#define LOAD_HALF(at) er_half((const uint8_t *)(at))
#define STORE(at, x) (*(at) = (x))
#define SET1(x) (x)
#define FMA(a, b, c) fmaf(a, b, c)
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define EXPONENT(p, t) exponent(p, t)

ER_INLINE float exponent(float p, float t) {
    uint32_t bits, whole;
    memcpy(&bits, &p, 4);
    memcpy(&whole, &t, 4);
    bits += whole << 23;
    memcpy(&p, &bits, 4);
    return p;
}
