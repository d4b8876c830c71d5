/* What happens to rows between products, one float at a time, and which variant to take. */
#include "rowwise.h"

#include <string.h>

#include "target.h"
#include "vectors_scalar.h"
#define VARIANT er_rowwise_reference
#define VARIANT_NAME "reference"
#define RUNS_HERE true
#include "rowwise_body.h"

#if ER_X86
extern const er_rowwise_variant er_rowwise_avx2;
#elif ER_ARM
extern const er_rowwise_variant er_rowwise_neon;
#endif

static const er_rowwise_variant *const variants[] = {
#if ER_X86
    &er_rowwise_avx2,
#elif ER_ARM
    &er_rowwise_neon,
#endif
    &er_rowwise_reference,
};

const er_rowwise_variant *er_rowwise_find(const char *name) {
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if ((*name == '\0' || strcmp(name, variants[i]->name) == 0) && variants[i]->runs_here())
            return variants[i];
    return NULL;
}
