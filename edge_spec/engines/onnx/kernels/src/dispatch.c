/* Which variants this build has, and which of them to take. */
#include "rows.h"
#include "target.h"

#if ER_X86
extern const er_variant er_avx512_vnni, er_avx512, er_avx512_vnni_256, er_avx_vnni, er_avx2;
#elif ER_ARM
extern const er_variant er_neon_i8mm, er_neon_dotprod, er_neon;
#endif

const er_variant *const er_variants[] = {
#if ER_X86
    &er_avx512_vnni,
    &er_avx512_vnni_256,
#endif
#if ER_X86_HAS_AVX_VNNI
    &er_avx_vnni,
#endif
#if ER_X86
    &er_avx512,
    &er_avx2,
#endif
#if ER_ARM_HAS_I8MM
    &er_neon_i8mm,
#endif
#if ER_ARM_HAS_DOTPROD
    &er_neon_dotprod,
#endif
#if ER_ARM
    &er_neon,
#endif
    &er_reference,
};
const int er_n_variants = (int)(sizeof er_variants / sizeof *er_variants);

const er_variant *er_find_variant(const char *name) {
    for (int i = 0; i < er_n_variants; i++) {
        const er_variant *variant = er_variants[i];
        if (name != NULL && *name != '\0' && strcmp(name, variant->name) != 0)
            continue;
        if (variant->runs_here())
            return variant;
    }
    return NULL;
}
