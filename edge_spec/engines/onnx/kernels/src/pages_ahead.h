/* Prefetching pages of weights, for the x86 variants.
 *
 * Every 4 KiB the CPU has to translate the address of the next page of weights. In a virtual machine that can take
 * longer than a read from memory, and a prefetch of a few lines ahead is too late to hide it. So a second pointer runs
 * some pages ahead over the weights of a tile, and one line of every unit that it reaches is prefetched.
 *
 * Only with many rows, which leave time for it: with 1 to 4 rows, memory sets the pace, and where pages are large or
 * contiguous, the additional requests made it up to 15 % slower.
 */
#ifndef EDGE_ROWS_PAGES_AHEAD_H
#define EDGE_ROWS_PAGES_AHEAD_H

#include <immintrin.h>

#include "rows.h"

enum { ER_PAGES_AHEAD_BYTES = 12288, ER_PAGES_AHEAD_ROWS = 8 };

/* `at` passes over the tile's units in the order of use; `end` is the end of the tile's part of the group. It runs past
 * the last group, and is only prefetched, never read. */
typedef struct {
    const uint8_t *at, *end;
} er_pages;

ER_INLINE er_pages er_pages_ahead(const er_tile *t, size_t unit_bytes) {
    const size_t units = ER_PAGES_AHEAD_BYTES / unit_bytes + 1;
    const uint8_t *group = t->weights + units / t->n_units * t->group_bytes;
    return (er_pages){group + units % t->n_units * unit_bytes, group + t->n_units * unit_bytes};
}

/* Call once per unit, with rows a constant. */
ER_INLINE void er_prefetch_page(er_pages *pages, const er_tile *t, size_t unit_bytes, int rows) {
    if (rows < ER_PAGES_AHEAD_ROWS)
        return;
    _mm_prefetch((const char *)pages->at, _MM_HINT_T0);
    pages->at += unit_bytes;
    if (pages->at == pages->end) {
        pages->at += t->group_bytes - t->n_units * unit_bytes;
        pages->end += t->group_bytes;
    }
}

#endif
