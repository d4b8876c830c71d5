/* Asking the CPU, and the operating system whether it saves the wide registers. */
#include "cpu.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "target.h"

#if ER_X86
#if defined(_MSC_VER)
#include <intrin.h>
static void cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]) {
    __cpuidex((int *)out, (int)leaf, (int)subleaf);
}
static uint64_t saved_registers(void) { return _xgetbv(0); }
#else
#include <cpuid.h>
static void cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]) {
    __cpuid_count(leaf, subleaf, out[0], out[1], out[2], out[3]);
}
static uint64_t saved_registers(void) {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}
#endif

static bool bit(uint32_t word, int position) { return word >> position & 1u; }

static er_cpu detected(void) {
    er_cpu cpu = {0};
    uint32_t r[4]; /* eax, ebx, ecx, edx */
    cpuid(0, 0, r);
    const uint32_t highest = r[0];
    if (highest < 7)
        return cpu;
    cpuid(1, 0, r);
    const bool has_xgetbv = bit(r[2], 27), fma_f16c_avx = bit(r[2], 12) && bit(r[2], 29) && bit(r[2], 28);
    if (!has_xgetbv || !fma_f16c_avx)
        return cpu;
    const uint64_t saved = saved_registers();
    const bool saves_256 = (saved & 0x06u) == 0x06u, saves_512 = (saved & 0xe6u) == 0xe6u;
    cpuid(7, 0, r);
    const uint32_t more = r[0];
    cpu.avx2 = saves_256 && bit(r[1], 5);
    cpu.avx512 = cpu.avx2 && saves_512 && bit(r[1], 16) && bit(r[1], 17) && bit(r[1], 30) && bit(r[1], 31);
    cpu.avx512_vnni = cpu.avx512 && bit(r[2], 11);
    if (more >= 1) {
        cpuid(7, 1, r);
        cpu.avx_vnni = cpu.avx2 && bit(r[0], 4);
    }
    return cpu;
}

#elif ER_ARM
#if defined(__linux__)
#include <sys/auxv.h>
static er_cpu detected(void) {
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    const bool dotprod = first >> 20 & 1u; /* HWCAP_ASIMDDP */
    const bool i8mm = dotprod && (second >> 13 & 1u); /* HWCAP2_I8MM */
    return (er_cpu){.neon = true, .neon_dotprod = dotprod, .neon_i8mm = i8mm};
}
#elif defined(__APPLE__)
#include <sys/sysctl.h>
static bool has(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0;
}
static er_cpu detected(void) {
    const bool dotprod = has("hw.optional.arm.FEAT_DotProd");
    const bool i8mm = dotprod && has("hw.optional.arm.FEAT_I8MM");
    return (er_cpu){.neon = true, .neon_dotprod = dotprod, .neon_i8mm = i8mm};
}
#elif defined(_WIN32)
#include <windows.h>
static er_cpu detected(void) {
    const bool dotprod = IsProcessorFeaturePresent(43); /* PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE */
    const bool i8mm = dotprod && IsProcessorFeaturePresent(66); /* PF_ARM_V82_I8MM_... */
    return (er_cpu){.neon = true, .neon_dotprod = dotprod, .neon_i8mm = i8mm};
}
#else
static er_cpu detected(void) { return (er_cpu){.neon = true}; }
#endif

#else
static er_cpu detected(void) { return (er_cpu){0}; }
#endif

/* Whether a list that is separated by commas has a name. */
static bool lists(const char *list, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == 0))
            return true;
    return false;
}

er_cpu er_cpu_features(void) {
    er_cpu cpu = detected();
    const char *without = getenv("EDGE_SPEC_WITHOUT");
    if (without == NULL)
        return cpu;
    cpu.avx2 &= !lists(without, "avx2");
    cpu.avx_vnni &= cpu.avx2 && !lists(without, "avx-vnni");
    cpu.avx512 &= cpu.avx2 && !lists(without, "avx512");
    cpu.avx512_vnni &= cpu.avx512 && !lists(without, "avx512-vnni");
    cpu.neon &= !lists(without, "neon");
    cpu.neon_dotprod &= cpu.neon && !lists(without, "dotprod");
    cpu.neon_i8mm &= cpu.neon_dotprod && !lists(without, "i8mm");
    return cpu;
}
