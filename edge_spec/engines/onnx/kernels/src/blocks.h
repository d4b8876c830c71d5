/* The numbers and the scales of a block, written once for all vector widths. A file that includes this defines
 *
 *     bytes (a register), LOAD_BYTES, SET_BYTES, AND, OR, RIGHT(x, n), LEFT(x, n)
 *     BYTE_SHIFTS: whether these shift each byte; else bits come in from its neighbors
 *     LOAD_TABLE (of 16 bytes), LOOK_UP(table, places)
 *     SIGNED(x): numbers of 8 bits as the variant multiplies them
 *     unsigned_bytes, signed_bytes, low_halves, high_halves: WIDTH bytes, or 4 bits of each, as floats
 *     NEGATED(floats)
 *
 * and includes floats.h.
 */
#ifndef EDGE_ROWS_BLOCKS_H
#define EDGE_ROWS_BLOCKS_H

/* Some bits of every byte, moved from a place to another one. */
ER_INLINE bytes move_bits(bytes x, int n, int from, int to) {
    const bytes moved = from >= to ? RIGHT(x, from >= to ? from - to : 0) : LEFT(x, from >= to ? 0 : to - from);
    if (n == 8 || (BYTE_SHIFTS && from + n == 8 && to == 0))
        return moved;
    return AND(moved, SET_BYTES((char)(((1 << n) - 1) << to)));
}

/* A register of each of n quads of a block, of which there are eight, from `first` on. codes: where its lanes of the first
 * quad of all are. */
ER_INLINE void unpack(er_kind kind, const uint8_t *codes, int first, int n, bytes *quads) {
    const int low = er_low_bits(kind), more = er_code_bits(kind) - low;
    ER_UNROLL for (int i = 0; i < n; i++) {
        const int j = first + i;
        quads[i] = move_bits(LOAD_BYTES(codes + 64 * (low * j / 8)), low, low * j % 8, low == 1);
        if (more > 0)
            quads[i] = OR(quads[i], move_bits(LOAD_BYTES(codes + 64 * (low + more * j / 8)), more, more * j % 8, low));
    }
    if (er_table(kind) != NULL) {
        const bytes table = LOAD_TABLE(er_table(kind)), numbers = er_number_bits(kind) == 8 ? SIGNED(table) : table;
        ER_UNROLL for (int i = 0; i < n; i++) quads[i] = LOOK_UP(numbers, quads[i]);
    } else if (er_code_bits(kind) == 8) {
        ER_UNROLL for (int i = 0; i < n; i++) quads[i] = SIGNED(quads[i]);
    }
}

/* The scales and minima of a block. d: scales of the two halves, or scale and minimum. m: minima of the two halves. */
typedef struct {
    vec d[2], m[2];
} block_scales;

/* Of WIDTH outputs from the first one on. */
ER_INLINE block_scales scales_of(er_kind kind, const uint8_t *head, const uint8_t *block, int first) {
    const vec d = load_floats(er_traits_of(kind).scales, head + 2 * first);
    const vec m = er_has_minima(kind) ? LOAD_HALF(head + 32 + 2 * first) : d;
    const uint8_t *here = block + first, *there = here + 16;
    if (er_form_of(kind) == ER_HALVES)
        return (block_scales){{MUL(d, signed_bytes(here)), MUL(d, signed_bytes(there))}, {m, m}};
    if (er_form_of(kind) == ER_MINIMA)
        return (block_scales){{MUL(d, low_halves(here)), MUL(d, low_halves(there))},
                              {NEGATED(MUL(m, high_halves(here))), NEGATED(MUL(m, high_halves(there)))}};
    if (er_subscale_bytes(kind) == 16)
        return (block_scales){{MUL(d, signed_bytes(here)), m}, {m, m}};
    if (er_subscale_bytes(kind) == 32)
        return (block_scales){{MUL(d, unsigned_bytes(here)), NEGATED(MUL(m, unsigned_bytes(there)))}, {m, m}};
    return (block_scales){{d, m}, {m, m}};
}

#endif
