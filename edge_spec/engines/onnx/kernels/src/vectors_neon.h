/* Registers of 4 floats, which every 64-bit Arm has; see vectors_avx512.h. */
#define vec float32x4_t
#define WIDTH 4
#define SCORE_QUERIES 4
#define VALUE_QUERIES 4
#define LOAD(at) vld1q_f32(at)
#define LOAD_HALF(at) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)(const void *)(at))))
#define STORE(at, x) vst1q_f32(at, x)
#define SET1(x) vdupq_n_f32(x)
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define ADD(a, b) vaddq_f32(a, b)
#define SUB(a, b) vsubq_f32(a, b)
#define MUL(a, b) vmulq_f32(a, b)
#define DIV(a, b) vdivq_f32(a, b)
#define MAX(a, b) vmaxq_f32(a, b)
#define MIN(a, b) vminq_f32(a, b)
#define EXPONENT(p, t) \
    vreinterpretq_f32_s32( \
        vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vreinterpretq_s32_f32(t), 23)))
