// Vectors of 512 bits: AVX512-F, BW, VL and DQ; BF16 and VNNI where the compiler was told that they are there.

#include <immintrin.h>

#define LANES 16
#define COLUMNS 2 // vectors of a panel
#ifdef __AMX_TILE__
#define TILE_PRODUCTS // tiles.h
#define ROWS 32       // input rows of a micro kernel: two tiles
#else
#define ROWS 12 // input rows of a micro kernel: 12 x 2 accumulators leave registers for what is loaded
#endif
#define ACCUMULATORS 24
#define PAUSE _mm_pause

#ifdef __AVX512BF16__
#define PAIR_PRODUCTS // vdpbf16ps: a0*b0 + a1*b1 to each of 16 floats
#endif
#ifdef __AVX512VNNI__
#define OFFSET 128 // what is added to int8 inputs, so that they are uint8: vpdpbusd takes fours of uint8 and int8
#else
#define OFFSET 0
#endif

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));

ALWAYS vf splat(float x) { return (vf)_mm512_set1_ps(x); }
ALWAYS vi splat_word(uint32_t x) { return (vi)_mm512_set1_epi32((int)x); }
ALWAYS vf fma_of(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
ALWAYS vi rounded(vf x) { return (vi)_mm512_cvtps_epi32((__m512)x); }
ALWAYS float sum_of(vf x) { return _mm512_reduce_add_ps((__m512)x); }
ALWAYS int32_t whole_sum_of(vi x) { return _mm512_reduce_add_epi32((__m512i)x); }
ALWAYS float largest_of(vf x) { return _mm512_reduce_max_ps((__m512)x); }
ALWAYS vf larger(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
ALWAYS uint32_t lanes_of(vi mask) { return _mm512_movepi32_mask((__m512i)mask); }

// Lanes from `first` to before `end` of `yes`, the others of `no`.
ALWAYS vf within(i64 first, i64 end, vf yes, vf no) {
    uint32_t lanes = end >= LANES ? 0xffff : end <= 0 ? 0 : (1u << end) - 1;
    if (first > 0) lanes &= first >= LANES ? 0 : ~0u << first;
    return (vf)_mm512_mask_blend_ps((__mmask16)lanes, (__m512)no, (__m512)yes);
}

ALWAYS vf load_bf16(const bf16 *from) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16);
}

#ifdef __AVX512BF16__
ALWAYS void store_bf16(bf16 *to, vf x) { _mm256_storeu_si256((void *)to, (__m256i)_mm512_cvtneps_pbh((__m512)x)); }
#else
ALWAYS void store_bf16(bf16 *to, vf x) {
    __m512i bits = (__m512i)x, odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 none = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, none, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((void *)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
}
#endif

// e^x to about 2 units in the last place of a float: 2^n * p(f), x*log2(e) = n + f with f in [-1/2, 1/2].
ALWAYS vf times_power_of_two(vf x, vf n) { return (vf)_mm512_scalef_ps((__m512)x, (__m512)n); }
ALWAYS vf nearest(vf x) { return (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
ALWAYS vf exponent_range(vf x) { return x; }

// Numbers to every second place: those between are another token's, whom another thread may be writing.
ALWAYS void spread(bf16 *to, const bf16 *from) {
    __m512i each = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from));
    const i64 odd = ((uintptr_t)to & 2) != 0;
    _mm512_mask_storeu_epi16(to - odd, odd ? 0xaaaaaaaa : 0x55555555, _mm512_or_si512(each, _mm512_slli_epi32(each, 16)));
}

// Whole numbers as bf16, which has each of them exactly.
ALWAYS void widen_whole(const int8_t *from, bf16 *to) {
    __m512i bits = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)from))));
    _mm256_storeu_si256((void *)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

#ifdef PAIR_PRODUCTS
ALWAYS vf add_pairs(vf sum, vi x, vi w) {
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
}
#endif

#ifdef __AVX512VNNI__
ALWAYS vi add_fours(vi sum, vi x, vi w) { return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w); }
#else
#define HALF_SUMS // products of 4 bits are summed in int16 at first
ALWAYS vi add_halves(vi sum, vi w, vi x) {
    return (vi)_mm512_add_epi16((__m512i)sum, _mm512_maddubs_epi16((__m512i)w, (__m512i)x));
}
ALWAYS vi widened_halves(vi sum) { return (vi)_mm512_madd_epi16((__m512i)sum, _mm512_set1_epi16(1)); }

// |w| times x with the sign of w. Both are at most 127, so that a pair of products fits into an int16.
ALWAYS vi add_fours(vi sum, vi x, vi w) {
    __m512i all = (__m512i)x, minus = _mm512_mask_sub_epi8(all, _mm512_movepi8_mask((__m512i)w), _mm512_setzero_si512(), all);
    __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8((__m512i)w), minus);
    return sum + (vi)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}
#endif

// Rows to columns: word i of row r becomes word r of row i.
ALWAYS void transpose(vi given[LANES]) {
    __m512i row[LANES], pair[LANES], four[LANES];
    UNROLLED
    for (int r = 0; r < LANES; r++) row[r] = (__m512i)given[r];
    UNROLLED
    for (int r = 0; r < LANES; r += 2) {
        pair[r] = _mm512_unpacklo_epi32(row[r], row[r + 1]);
        pair[r + 1] = _mm512_unpackhi_epi32(row[r], row[r + 1]);
    }
    UNROLLED
    for (int r = 0; r < LANES; r += 4)
        for (int i = 0; i < 2; i++) {
            four[r + 2 * i] = _mm512_unpacklo_epi64(pair[r + i], pair[r + i + 2]);
            four[r + 2 * i + 1] = _mm512_unpackhi_epi64(pair[r + i], pair[r + i + 2]);
        }
    // Each quarter of four[4 * b + i] is now word i of that quarter, of rows 4 * b to 4 * b + 3.
    UNROLLED
    for (int i = 0; i < 4; i++) {
        __m512i a = _mm512_shuffle_i32x4(four[i], four[4 + i], 0x88), b = _mm512_shuffle_i32x4(four[8 + i], four[12 + i], 0x88);
        __m512i c = _mm512_shuffle_i32x4(four[i], four[4 + i], 0xdd), d = _mm512_shuffle_i32x4(four[8 + i], four[12 + i], 0xdd);
        row[i] = _mm512_shuffle_i32x4(a, b, 0x88), row[8 + i] = _mm512_shuffle_i32x4(a, b, 0xdd);
        row[4 + i] = _mm512_shuffle_i32x4(c, d, 0x88), row[12 + i] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
    UNROLLED
    for (int r = 0; r < LANES; r++) given[r] = (vi)row[r];
}
