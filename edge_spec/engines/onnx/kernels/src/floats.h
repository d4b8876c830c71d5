/* Rows times matrices of floats, written once for all vector widths. A file that includes this defines
 *
 *     FLOAT_ROWS (the most rows at once), FLOAT_GROUPS(rows) (groups of outputs at once with so many rows: sums of several
 *     are independent, or each addition would wait for the one before), LOAD_BFLOAT, and SETTLED(x) = x with the NaN of
 *     rows.h for every NaN
 *
 * and includes one of the files vectors_*.h. It gives multiply_F32, multiply_F16 and multiply_BF16.
 */
#ifndef EDGE_ROWS_FLOATS_H
#define EDGE_ROWS_FLOATS_H

enum { FLOAT_PARTS = ER_GROUP / WIDTH, FLOAT_MOST_GROUPS = FLOAT_GROUPS(1) };

ER_INLINE vec load_floats(er_kind kind, const uint8_t *at) {
    if (kind == ER_F32)
        return LOAD((const float *)(const void *)at);
    return kind == ER_F16 ? LOAD_HALF(at) : LOAD_BFLOAT(at);
}

/* Rows from first_row on times the groups from `group` on; kind, rows and groups are constants. */
ER_INLINE void add_floats(const er_tile *t, er_kind kind, int rows, int groups, size_t group, int first_row) {
    const size_t unit_bytes = (size_t)er_unit_bytes(kind), part_bytes = unit_bytes / FLOAT_PARTS;
    const uint8_t *weights = t->weights + group * t->group_bytes, *x = t->activations + 4 * first_row;
    float *out = t->out + (size_t)first_row * t->out_stride + group * ER_GROUP;
    vec acc[FLOAT_ROWS][FLOAT_MOST_GROUPS][FLOAT_PARTS];
    ER_UNROLL for (int r = 0; r < rows; r++)
        ER_UNROLL for (int g = 0; g < groups; g++)
            ER_UNROLL for (int p = 0; p < FLOAT_PARTS; p++)
                acc[r][g][p] = t->first ? SET1(0.0f)
                                        : LOAD(out + (size_t)r * t->out_stride + g * ER_GROUP + p * WIDTH);
    for (size_t i = 0; i < t->n_units; i++, weights += unit_bytes, x += 4 * t->n_rows)
        ER_UNROLL for (int g = 0; g < groups; g++)
            ER_UNROLL for (int p = 0; p < FLOAT_PARTS; p++) {
                const vec w = load_floats(kind, weights + (size_t)g * t->group_bytes + (size_t)p * part_bytes);
                ER_UNROLL for (int r = 0; r < rows; r++)
                    acc[r][g][p] = FMA(SET1(er_load_f32(x + 4 * r)), w, acc[r][g][p]);
            }
    ER_UNROLL for (int r = 0; r < rows; r++)
        ER_UNROLL for (int g = 0; g < groups; g++)
            ER_UNROLL for (int p = 0; p < FLOAT_PARTS; p++) {
                const vec sum = acc[r][g][p];
                STORE(out + (size_t)r * t->out_stride + g * ER_GROUP + p * WIDTH, t->last ? SETTLED(sum) : sum);
            }
}

ER_INLINE void multiply_floats(const er_tile *t, er_kind kind, int rows, int first_row) {
    const int at_once = FLOAT_GROUPS(rows);
    size_t group = 0;
    for (; group + (size_t)at_once <= t->n_groups; group += (size_t)at_once)
        add_floats(t, kind, rows, at_once, group, first_row);
    for (; group < t->n_groups; group++)
        add_floats(t, kind, rows, 1, group, first_row);
}

#define FLOATS(kind_, n) case n: multiply_floats(t, ER_##kind_, n, row); break;
#define DEFINE_FLOATS(kind_, ...)                                                                                   \
    static void multiply_##kind_(const er_tile *t) {                                                           \
        for (int row = 0; row < t->n_rows; row += FLOAT_ROWS)                                                  \
            switch (t->n_rows - row < FLOAT_ROWS ? t->n_rows - row : FLOAT_ROWS) {                             \
                FLOATS(kind_, 1) FLOATS(kind_, 2) FLOATS(kind_, 3) FLOATS(kind_, 4)                            \
                MORE_FLOATS(kind_)                                                                             \
            }                                                                                                  \
    }
#if FLOAT_ROWS == 8
#define MORE_FLOATS(kind_) FLOATS(kind_, 5) FLOATS(kind_, 6) FLOATS(kind_, 7) FLOATS(kind_, 8)
#else
#define MORE_FLOATS(kind_)
#endif
ER_FLOATS(DEFINE_FLOATS)

#endif
