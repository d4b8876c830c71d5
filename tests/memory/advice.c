/* Stands before the system's calls in a process that loads it first (LD_PRELOAD): writes into the file that ADVICE names
 * what the process says it will need of pages, and no longer needs, of memory and of files. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static void tell(const char *what, int file, long long first, long long n) {
    FILE *told = fopen(getenv("ADVICE"), "a");
    if (told == NULL)
        abort();
    fprintf(told, "%s %d %lld %lld\n", what, file, first, n);
    fclose(told);
}

int madvise(void *at, size_t n, int advice) {
    if (advice == MADV_WILLNEED || advice == MADV_DONTNEED)
        tell(advice == MADV_WILLNEED ? "fetch" : "drop", -1, (long long)(size_t)at, (long long)n);
    return (int)syscall(SYS_madvise, at, n, advice);
}

int posix_fadvise64(int file, off64_t first, off64_t n, int advice) {
    (void)advice;
    tell("forget", file, first, n);
    return 0;
}

int posix_fadvise(int file, off_t first, off_t n, int advice) { return posix_fadvise64(file, first, n, advice); }
