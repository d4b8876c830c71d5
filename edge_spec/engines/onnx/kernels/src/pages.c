/* See pages.h. */
#define _DEFAULT_SOURCE
#define _FILE_OFFSET_BITS 64
#include "pages.h"

#if defined(_WIN32)

er_source er_find_source(const void *at, size_t n_bytes, bool opens) {
    (void)at; (void)n_bytes; (void)opens;
    return (er_source){false, -1, 0};
}
void er_close_source(er_source *source) { (void)source; }
void er_fetch_pages(const void *at, size_t n_bytes) { (void)at; (void)n_bytes; }
void er_drop_pages(const void *at, size_t n_bytes) { (void)at; (void)n_bytes; }
void er_forget_pages(const er_source *source, size_t first, size_t n_bytes) {
    (void)source; (void)first; (void)n_bytes;
}

#else

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What comes of an advice changes no number, so that it may fail. */
static void advise(uintptr_t start, uintptr_t end, int advice) {
    if (start < end)
        (void)madvise((void *)start, end - start, advice);
}

#if defined(__linux__)
enum { LONGEST_LINE = 8192 };

/* The file of that name, if it is still the one that is mapped. */
static int open_same(const char *name, unsigned long long inode) {
    struct stat found;
    const int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file >= 0 && (fstat(file, &found) != 0 || found.st_ino != inode)) {
        (void)close(file);
        return -1;
    }
    return file;
}

/* Elsewhere dropping keeps what no file has; here it would be lost. */
er_source er_find_source(const void *at, size_t n_bytes, bool opens) {
    const uintptr_t start = (uintptr_t)at, end = start + n_bytes;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[LONGEST_LINE];
    er_source source = {false, -1, 0};
    while (maps != NULL && !source.is_mapped && fgets(line, sizeof line, maps) != NULL) {
        uintptr_t first, last;
        uint64_t place;
        unsigned long long inode;
        int name = 0;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %" SCNx64 " %*s %llu %n", &first, &last, &place, &inode,
                   &name) != 4 || start < first || last < end || inode == 0)
            continue;
        line[strcspn(line, "\n")] = '\0';
        source.is_mapped = true;
        source.place = (int64_t)(place + (start - first));
        source.file = opens && name > 0 ? open_same(line + name, inode) : -1;
    }
    if (maps != NULL)
        (void)fclose(maps);
    return source;
}

void er_forget_pages(const er_source *source, size_t first, size_t n_bytes) {
    if (source->file >= 0)
        (void)posix_fadvise(source->file, source->place + (int64_t)first, (int64_t)n_bytes, POSIX_FADV_DONTNEED);
}
#else
er_source er_find_source(const void *at, size_t n_bytes, bool opens) {
    (void)at; (void)n_bytes; (void)opens;
    return (er_source){true, -1, 0};
}
void er_forget_pages(const er_source *source, size_t first, size_t n_bytes) {
    (void)source; (void)first; (void)n_bytes;
}
#endif

void er_close_source(er_source *source) {
    if (source->file >= 0)
        (void)close(source->file);
    source->file = -1;
}

void er_fetch_pages(const void *at, size_t n_bytes) {
    const uintptr_t start = (uintptr_t)at, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    advise(start - start % page, start + n_bytes, MADV_WILLNEED);
}

void er_drop_pages(const void *at, size_t n_bytes) {
    const uintptr_t start = (uintptr_t)at, end = start + n_bytes, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    advise(start + (page - start % page) % page, end - end % page, MADV_DONTNEED);
}

#endif
