/* See pages.h. */
#define _DEFAULT_SOURCE
#include "pages.h"

#if defined(_WIN32)

bool er_is_mapped(const void *at, size_t n_bytes) { (void)at; (void)n_bytes; return false; }
void er_fetch_pages(const void *at, size_t n_bytes) { (void)at; (void)n_bytes; }
void er_drop_pages(const void *at, size_t n_bytes) { (void)at; (void)n_bytes; }

#else

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* What comes of an advice changes no number, so that it may fail. */
static void advise(uintptr_t start, uintptr_t end, int advice) {
    if (start < end)
        (void)madvise((void *)start, end - start, advice);
}

#if defined(__linux__)
/* Elsewhere dropping keeps what no file has; here it would be lost. */
bool er_is_mapped(const void *at, size_t n_bytes) {
    const uintptr_t start = (uintptr_t)at, end = start + n_bytes;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    bool found = false;
    while (maps != NULL && !found && fgets(line, sizeof line, maps) != NULL) {
        uintptr_t first, last;
        unsigned long long inode;
        found = sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %llu", &first, &last, &inode) == 3 &&
                first <= start && end <= last && inode != 0;
    }
    if (maps != NULL)
        (void)fclose(maps);
    return found;
}
#else
bool er_is_mapped(const void *at, size_t n_bytes) { (void)at; (void)n_bytes; return true; }
#endif

void er_fetch_pages(const void *at, size_t n_bytes) {
    const uintptr_t start = (uintptr_t)at, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    advise(start - start % page, start + n_bytes, MADV_WILLNEED);
}

void er_drop_pages(const void *at, size_t n_bytes) {
    const uintptr_t start = (uintptr_t)at, end = start + n_bytes, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    advise(start + (page - start % page) % page, end - end % page, MADV_DONTNEED);
}

#endif
