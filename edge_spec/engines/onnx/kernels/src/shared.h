/* Numbers that Python reads from this file, too (shared.py): it packs what C reads. */
#ifndef EDGE_ROWS_SHARED_H
#define EDGE_ROWS_SHARED_H

enum {
    ER_VERSION = 1,       /* of the packed layout */
    ER_OPERATORS = 16,    /* raised with every new kind or function and every change to the arguments of the operators */
    ER_HEADER_BYTES = 64,
    ER_GROUP = 16,        /* outputs in a group */
    ER_BLOCK = 32,        /* inputs in a block of a quantized kind */
    ER_LANES = 16,        /* cells whose keys lie side by side */
    ER_MAX_HEAD_DIM = 512,
    ER_CHANNELS = 16,     /* the number of channels that are convolved is a multiple of it */
    ER_COLUMNS = 16,      /* columns of a delta net's state that lie side by side */
    ER_MAX_STATE_SIZE = 256,
    ER_STATE_HEAD = 16,   /* floats before the states of a layer */
    ER_FEATURES = 32,     /* numbers of a row that share a scale */
    ER_BLOCK_USES = 512,  /* rows of experts that are held at once */
};

/* The kinds of weights, one a row; a new one is a row here, its unpacking where its codes have another size, and how
 * packing.py takes its blocks apart.
 *
 *     name, number   as in GGUF
 *     form           how a kind makes an output, see rows.h
 *     bits           of a code; of a float
 *     numbers        bits of what is multiplied: codes, or the numbers that a table has for them
 *     offset         what is subtracted from a number
 *     scales         what the head's scales are
 *     subscales      bytes per block of whole numbers that the head's scales are multiplied by: i8[16] where they are 16,
 *                    u8[16] and u8[16] for the minima in ER_MINIMUM, i8[16] x 2 in ER_HALVES, u4[16] with u4[16] for
 *                    the minima in one byte x 2 in ER_MINIMA
 *     blocks         in a unit
 *     table          the numbers of codes
 */
#define ER_FLOATS(KIND)                                                \
    KIND(F32, 0, PLAIN, 32, 32, 0, F32, 0, 1, NULL)                    \
    KIND(F16, 1, PLAIN, 16, 16, 0, F16, 0, 1, NULL)                    \
    KIND(BF16, 30, PLAIN, 16, 16, 0, BF16, 0, 1, NULL)

#define ER_QUANTIZED(KIND)                                             \
    KIND(Q4_0, 2, OFFSET, 4, 4, 8, F16, 0, 1, NULL)                    \
    KIND(Q4_1, 3, MINIMUM, 4, 4, 0, F16, 0, 1, NULL)                   \
    KIND(Q5_0, 6, OFFSET, 5, 5, 16, F16, 0, 1, NULL)                   \
    KIND(Q5_1, 7, MINIMUM, 5, 5, 0, F16, 0, 1, NULL)                   \
    KIND(Q8_0, 8, OFFSET, 8, 8, 128, F16, 0, 1, NULL)                  \
    KIND(Q2_K, 10, MINIMA, 2, 2, 0, F16, 32, 8, NULL)                  \
    KIND(Q3_K, 11, HALVES, 3, 3, 4, F16, 32, 8, NULL)                  \
    KIND(Q4_K, 12, MINIMUM, 4, 4, 0, F16, 32, 8, NULL)                 \
    KIND(Q5_K, 13, MINIMUM, 5, 5, 0, F16, 32, 8, NULL)                 \
    KIND(Q6_K, 14, HALVES, 6, 6, 32, F16, 32, 8, NULL)                 \
    KIND(IQ4_NL, 20, OFFSET, 4, 8, 128, F16, 0, 1, er_iq4)             \
    KIND(IQ4_XS, 23, OFFSET, 4, 8, 128, F16, 16, 8, er_iq4)            \
    KIND(TQ2_0, 35, OFFSET, 2, 2, 1, F16, 0, 8, NULL)                  \
    KIND(MXFP4, 39, OFFSET, 4, 5, 12, BF16, 0, 1, er_mxfp4)            \
    KIND(Q1_0, 41, OFFSET, 1, 2, 1, F16, 0, 4, NULL)                   \
    KIND(Q2_0, 42, OFFSET, 2, 2, 1, F16, 0, 2, NULL)

#define ER_KINDS(KIND) ER_FLOATS(KIND) ER_QUANTIZED(KIND)

#endif
