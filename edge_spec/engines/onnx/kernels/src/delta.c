/* Delta nets one float at a time, and which variant to take. */
#include "delta.h"

#include <string.h>

#include "target.h"
#include "vectors_scalar.h"
#define VARIANT er_delta_reference
#define VARIANT_NAME "reference"
#define RUNS_HERE true
#include "delta_body.h"

#if ER_X86
extern const er_delta_variant er_delta_avx512, er_delta_avx2;
#elif ER_ARM
extern const er_delta_variant er_delta_neon;
#endif

static const er_delta_variant *const variants[] = {
#if ER_X86
    &er_delta_avx512,
    &er_delta_avx2,
#elif ER_ARM
    &er_delta_neon,
#endif
    &er_delta_reference,
};

const er_delta_variant *er_delta_find(const char *name) {
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if ((*name == '\0' || strncmp(name, variants[i]->name, strlen(variants[i]->name)) == 0) &&
            variants[i]->runs_here())
            return variants[i];
    return NULL;
}

static size_t whole(size_t n) { return (n + ER_COLUMNS - 1) / ER_COLUMNS * ER_COLUMNS; }

size_t er_delta_scratch(size_t n_rows, size_t size) {
    return 2 * whole(n_rows) + 2 * n_rows * size + size * ER_COLUMNS;
}
