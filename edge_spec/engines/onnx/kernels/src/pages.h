/* Pages of mapped weights: read ahead of use, and dropped, to be read from their file again.
 *
 * What a process drops stays in the system's cache of files. There it is found again as long as memory has room. Where
 * it has none, the system cannot know that weights which were read a moment ago are needed later than those that are
 * used all the time: it drops both, and counts the reading of what it had dropped as time in which memory lacked. So
 * such pages have to leave the cache as well, by their place in the file. */
#ifndef EDGE_ROWS_PAGES_H
#define EDGE_ROWS_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a range comes from. */
typedef struct {
    bool is_mapped; /* from a file, all of it, so that its pages can be dropped */
    int file;       /* open for reading; -1 if its pages cannot leave the system's cache */
    int64_t place;  /* in the file, of the range's first byte */
} er_source;

/* Where a range comes from; opens its file if `opens`. */
er_source er_find_source(const void *at, size_t n_bytes, bool opens);
void er_close_source(er_source *source);

/* Begins to read the pages of a mapped range. */
void er_fetch_pages(const void *at, size_t n_bytes);

/* Drops the pages that lie in a mapped range as a whole. */
void er_drop_pages(const void *at, size_t n_bytes);

/* Has bytes of a file, whose pages were dropped, leave the system's cache of files. */
void er_forget_pages(const er_source *source, size_t first, size_t n_bytes);

#endif
