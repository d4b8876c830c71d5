/* Pages of mapped weights: read ahead of use, and dropped, to be read from their file again. */
#ifndef EDGE_ROWS_PAGES_H
#define EDGE_ROWS_PAGES_H

#include <stdbool.h>
#include <stddef.h>

/* Whether all of a range is mapped from a file, so that its pages can be dropped. */
bool er_is_mapped(const void *at, size_t n_bytes);

/* Begins to read the pages of a mapped range. */
void er_fetch_pages(const void *at, size_t n_bytes);

/* Drops the pages that lie in a mapped range as a whole. */
void er_drop_pages(const void *at, size_t n_bytes);

#endif
