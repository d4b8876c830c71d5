/* What each file of a variant begins with. Headers come before ER_TARGET_BEGIN: it is for the functions after it. */
#include "target.h"

#include <math.h>
#include <string.h>
#if ER_X86
#include <immintrin.h>
#elif ER_ARM
#include <arm_neon.h>
#endif

#include "cpu.h"
#include "half.h"
