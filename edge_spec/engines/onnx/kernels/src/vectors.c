/* One float at a time, and which variant to take. */
#include "target.h"
#include "vectors_scalar.h"
#define VARIANT er_vectors_reference
#define VARIANT_NAME "reference"
#define RUNS_HERE true
#include "vectors_body.h"

#if ER_X86
extern const er_vectors er_vectors_avx512, er_vectors_avx2;
#elif ER_ARM
extern const er_vectors er_vectors_neon;
#endif

static const er_vectors *const variants[] = {
#if ER_X86
    &er_vectors_avx512,
    &er_vectors_avx2,
#elif ER_ARM
    &er_vectors_neon,
#endif
    &er_vectors_reference,
};

const er_vectors *er_find_vectors(const char *name) {
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if ((*name == '\0' || strncmp(name, variants[i]->name, strlen(variants[i]->name)) == 0) &&
            variants[i]->runs_here())
            return variants[i];
    return NULL;
}
