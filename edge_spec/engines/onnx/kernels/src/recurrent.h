/* What layers with a state have in common: which rows a call goes over, and which of them the state takes in.
 *
 * A state cannot forget a token, so it takes in only what is committed. Of further rows a layer keeps what came in for
 * them, and goes over them again in the next call. A call's rows are, in the order of the text,
 *
 *     n_committed rows that were kept, whose tokens are committed by now: the state takes them in;
 *     n_pending rows that were kept and go on waiting;
 *     n_new rows, of which the state takes in the first n_read; the others are kept.
 *
 * The arithmetic of a row is the same in all of these parts, one row after the other, so states and results do not
 * depend on how a text was divided into calls.
 *
 * Two numbers say where a layer is: how many tokens its state has taken in, and how many rows it keeps after them. A run
 * of a graph that fails leaves layers in different places; each finds its own way from there to the text, as long as
 * it keeps the rows that are missing.
 */
#ifndef EDGE_ROWS_RECURRENT_H
#define EDGE_ROWS_RECURRENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t n_committed, n_pending, n_new, n_read;
} er_span;

/* Rows that were kept, all rows, and those at the beginning that the state takes in. */
static inline size_t er_n_old(const er_span *s) { return s->n_committed + s->n_pending; }
static inline size_t er_n_rows(const er_span *s) { return er_n_old(s) + s->n_new; }
static inline size_t er_n_taken(const er_span *s) { return s->n_committed + s->n_read; }

/* The rows of a call. place: the two numbers of a layer; run: how many tokens are committed before the new rows,
 * n_pending, n_new and n_read. False if the layer keeps other rows, or has no room for `capacity` of them. */
bool er_read_span(const int32_t place[2], const int64_t run[4], size_t capacity, er_span *span);

/* Where the layer is after such a call. */
void er_move_on(const er_span *span, int32_t place[2]);

#endif
