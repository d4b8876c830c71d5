/* Attention one float at a time, and which variant to take. */
#include "attention.h"

#include "target.h"
#include "vectors_scalar.h"
#define VARIANT er_attention_reference
#define VARIANT_NAME "reference"
#define RUNS_HERE true
#define SCORE_QUERIES 4
#define VALUE_QUERIES 2
#include "attention_body.h"

#if ER_X86
extern const er_attention_variant er_attention_avx512, er_attention_avx2;
#elif ER_ARM
extern const er_attention_variant er_attention_neon;
#endif

static const er_attention_variant *const variants[] = {
#if ER_X86
    &er_attention_avx512,
    &er_attention_avx2,
#elif ER_ARM
    &er_attention_neon,
#endif
    &er_attention_reference,
};

const er_attention_variant *er_attention_find(const char *name) {
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if ((*name == '\0' || strcmp(name, variants[i]->name) == 0) && variants[i]->runs_here())
            return variants[i];
    return NULL;
}

size_t er_attention_scratch(const er_attention *a) {
    const size_t stride = (a->n_seen + ER_LANES - 1) / ER_LANES * ER_LANES;
    return ER_LANES * (2 * a->head_dim + stride) + a->n_pending;
}
