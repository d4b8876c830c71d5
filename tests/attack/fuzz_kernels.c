/* A self test of kernels whose choices a fuzzer makes, by coverage, under sanitizers; see fuzz_kernels.sh. */
#define _DEFAULT_SOURCE
#define FUZZED
#include <stdio.h>
#include <stdlib.h>

#include "random.h"

#define printf(...) ((void)0)
#define main selftest
#include SELFTEST
#undef main

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char *arguments[] = {"selftest", "1"};
    input = data, input_end = data + size;
    restart(1);
    if (selftest(2, arguments) != 0)
        abort(); /* a variant differs from the reference */
    return 0;
}
