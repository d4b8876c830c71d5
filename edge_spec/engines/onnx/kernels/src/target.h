/* One source file, one instruction set: ER_TARGET_BEGIN("avx2,fma") before the includes, ER_TARGET_END at the end.
 *
 * So all files compile with the same flags, which is what Python's build tools can do, and only the functions of
 * a variant contain instructions that a CPU may lack. Microsoft's compiler accepts intrinsics without it.
 */
#ifndef EDGE_ROWS_TARGET_H
#define EDGE_ROWS_TARGET_H

#define ER_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define ER_TARGET_BEGIN(list) ER_PRAGMA(clang attribute push(__attribute__((target(list))), apply_to = function))
#define ER_TARGET_END _Pragma("clang attribute pop")
#elif defined(__GNUC__)
#define ER_TARGET_BEGIN(list) _Pragma("GCC push_options") ER_PRAGMA(GCC target(list))
#define ER_TARGET_END _Pragma("GCC pop_options")
#else
#define ER_TARGET_BEGIN(list)
#define ER_TARGET_END
#endif

#if defined(__GNUC__)
#define ER_UNROLL _Pragma("GCC unroll 16")
#define ER_UNROLL_TWICE _Pragma("GCC unroll 2")
#define ER_PREFETCH(address) __builtin_prefetch(address)
#else
#define ER_UNROLL
#define ER_UNROLL_TWICE
#define ER_PREFETCH(address) ((void)(address))
#endif

#if defined(__x86_64__) || (defined(_M_X64) && !defined(_M_ARM64EC))
#define ER_X86 1
#if defined(__clang__) ? __clang_major__ >= 12 : defined(__GNUC__) ? __GNUC__ >= 11 : _MSC_VER >= 1930
#define ER_X86_HAS_AVX_VNNI 1
#endif
#elif defined(__aarch64__) && defined(__GNUC__)
#define ER_ARM 1
/* Clang before 16 knows the intrinsics only where its flags allow them for the whole file. */
#if !defined(__clang__) || __clang_major__ >= 16 || defined(__ARM_FEATURE_DOTPROD)
#define ER_ARM_HAS_DOTPROD 1
#endif
#if !defined(__clang__) || __clang_major__ >= 16 || (ER_ARM_HAS_DOTPROD && defined(__ARM_FEATURE_MATMUL_INT8))
#define ER_ARM_HAS_I8MM 1
#endif
/* The two compilers spell an addition to the instruction set differently. */
#if defined(__clang__)
#define ER_ARM_DOTPROD "dotprod"
#define ER_ARM_I8MM "dotprod,i8mm"
#else
#define ER_ARM_DOTPROD "arch=armv8.2-a+dotprod"
#define ER_ARM_I8MM "arch=armv8.2-a+dotprod+i8mm"
#endif
#endif

#endif
