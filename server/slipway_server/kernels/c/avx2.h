// Vectors of 256 bits: AVX2 and FMA; AVX-VNNI where the compiler was told that it is there.

#include <immintrin.h>

#define LANES 8
#define COLUMNS 2 // vectors of a panel
#define ROWS 6    // input rows of a micro kernel: 6 x 2 accumulators of 16 registers
#define ACCUMULATORS 12
#define PAUSE _mm_pause

#if defined __AVXVNNI__ || defined __AVX512VNNI__
#define OFFSET 128 // what is added to int8 inputs, so that they are uint8: vpdpbusd takes fours of uint8 and int8
#else
#define OFFSET 0
#endif

typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));

ALWAYS vf splat(float x) { return (vf)_mm256_set1_ps(x); }
ALWAYS vi splat_word(uint32_t x) { return (vi)_mm256_set1_epi32((int)x); }
ALWAYS vf fma_of(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
ALWAYS vi rounded(vf x) { return (vi)_mm256_cvtps_epi32((__m256)x); }
ALWAYS vf larger(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
ALWAYS uint32_t lanes_of(vi mask) { return (uint32_t)_mm256_movemask_ps((__m256)mask); }
ALWAYS vf nearest(vf x) { return (vf)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

ALWAYS vf load_bf16(const bf16 *from) {
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from)), 16);
}

// The upper halves of words.
ALWAYS __m128i upper_halves(__m256i bits) {
    __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(bits, 16), _mm256_setzero_si256());
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

ALWAYS void store_bf16(bf16 *to, vf x) {
    __m256i bits = (__m256i)x, odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i none = (__m256i)_mm256_cmp_ps((__m256)x, (__m256)x, _CMP_UNORD_Q);
    up = _mm256_blendv_epi8(up, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), none);
    _mm_storeu_si128((void *)to, upper_halves(up));
}

// Whole numbers as bf16, which has each of them exactly.
ALWAYS void widen_whole(const int8_t *from, bf16 *to) {
    __m256i whole = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)from));
    _mm_storeu_si128((void *)to, upper_halves(_mm256_castps_si256(_mm256_cvtepi32_ps(whole))));
}

#if defined __AVXVNNI__
ALWAYS vi add_fours(vi sum, vi x, vi w) { return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)x, (__m256i)w); }
#elif defined __AVX512VNNI__ // the same instruction in the other encoding: tests run it where AVX-VNNI is not
ALWAYS vi add_fours(vi sum, vi x, vi w) { return (vi)_mm256_dpbusd_epi32((__m256i)sum, (__m256i)x, (__m256i)w); }
#else
#define HALF_SUMS // products of 4 bits are summed in int16 at first
ALWAYS vi add_halves(vi sum, vi w, vi x) {
    return (vi)_mm256_add_epi16((__m256i)sum, _mm256_maddubs_epi16((__m256i)w, (__m256i)x));
}
ALWAYS vi widened_halves(vi sum) { return (vi)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1)); }

// |w| times x with the sign of w. Both are at most 127, so that a pair of products fits into an int16.
ALWAYS vi add_fours(vi sum, vi x, vi w) {
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)w), _mm256_sign_epi8((__m256i)x, (__m256i)w));
    return sum + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
#endif

// Rows to columns: word i of row r becomes word r of row i.
ALWAYS void transpose(vi given[LANES]) {
    __m256i pair[LANES], four[LANES];
    UNROLLED
    for (int r = 0; r < LANES; r += 2) {
        pair[r] = _mm256_unpacklo_epi32((__m256i)given[r], (__m256i)given[r + 1]);
        pair[r + 1] = _mm256_unpackhi_epi32((__m256i)given[r], (__m256i)given[r + 1]);
    }
    UNROLLED
    for (int r = 0; r < LANES; r += 4)
        for (int i = 0; i < 2; i++) {
            four[r + 2 * i] = _mm256_unpacklo_epi64(pair[r + i], pair[r + i + 2]);
            four[r + 2 * i + 1] = _mm256_unpackhi_epi64(pair[r + i], pair[r + i + 2]);
        }
    UNROLLED
    for (int i = 0; i < 4; i++) {
        given[i] = (vi)_mm256_permute2x128_si256(four[i], four[4 + i], 0x20);
        given[4 + i] = (vi)_mm256_permute2x128_si256(four[i], four[4 + i], 0x31);
    }
}
