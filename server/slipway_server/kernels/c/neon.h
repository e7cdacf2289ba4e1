// Vectors of 128 bits: aarch64 with the products of int8 (ARMv8.2 and dotprod).

#include <arm_neon.h>

#define LANES 4
#define COLUMNS 4 // vectors of a panel
#define ROWS 6    // input rows of a micro kernel: 6 x 4 accumulators of 32 registers
#define ACCUMULATORS 24
#define PAUSE() __asm__ volatile("yield")
#define OFFSET 0 // sdot takes fours of int8

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

ALWAYS vf splat(float x) { return (vf)vdupq_n_f32(x); }
ALWAYS vi splat_word(uint32_t x) { return (vi)vdupq_n_u32(x); }
ALWAYS vf fma_of(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
ALWAYS vi rounded(vf x) { return (vi)vcvtnq_s32_f32((float32x4_t)x); }
ALWAYS vf larger(vf a, vf b) { return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b); }
ALWAYS uint32_t lanes_of(vi mask) { return vaddvq_u32(vandq_u32((uint32x4_t)mask, (uint32x4_t){1, 2, 4, 8})); }
ALWAYS vf nearest(vf x) { return (vf)vrndnq_f32((float32x4_t)x); }

ALWAYS vf load_bf16(const bf16 *from) { return (vf)vshll_n_u16(vld1_u16(from), 16); }

ALWAYS void store_bf16(bf16 *to, vf x) {
    uint32x4_t bits = (uint32x4_t)x, odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    up = vbslq_u32(vceqq_f32((float32x4_t)x, (float32x4_t)x), up, vorrq_u32(bits, vdupq_n_u32(0x400000)));
    vst1_u16(to, vshrn_n_u32(up, 16));
}

// Whole numbers as bf16, which has each of them exactly.
ALWAYS void widen_whole(const int8_t *from, bf16 *to) {
    int8_t four[8] = {from[0], from[1], from[2], from[3]};
    int32x4_t whole = vmovl_s16(vget_low_s16(vmovl_s8(vld1_s8(four))));
    vst1_u16(to, vshrn_n_u32((uint32x4_t)vcvtq_f32_s32(whole), 16));
}

ALWAYS vi add_fours(vi sum, vi x, vi w) { return (vi)vdotq_s32((int32x4_t)sum, (int8x16_t)x, (int8x16_t)w); }

// Rows to columns: word i of row r becomes word r of row i.
ALWAYS void transpose(vi row[LANES]) {
    int32x4x2_t upper = vtrnq_s32((int32x4_t)row[0], (int32x4_t)row[1]), lower = vtrnq_s32((int32x4_t)row[2], (int32x4_t)row[3]);
    row[0] = (vi)vcombine_s32(vget_low_s32(upper.val[0]), vget_low_s32(lower.val[0]));
    row[1] = (vi)vcombine_s32(vget_low_s32(upper.val[1]), vget_low_s32(lower.val[1]));
    row[2] = (vi)vcombine_s32(vget_high_s32(upper.val[0]), vget_high_s32(lower.val[0]));
    row[3] = (vi)vcombine_s32(vget_high_s32(upper.val[1]), vget_high_s32(lower.val[1]));
}
