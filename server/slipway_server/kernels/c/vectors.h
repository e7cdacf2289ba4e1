// Vectors of floats (vf) and words (vi), LANES of them: what is the same for all instruction sets, in terms of their own.
// SHORT_VECTORS takes those of AVX2 where longer ones are there: for tests.

#if defined __AVX512F__ && !defined SHORT_VECTORS
#include "avx512.h"
#elif defined __AVX2__
#include "avx2.h"
#else
#include "neon.h"
#endif

#define PANEL (COLUMNS * LANES) // output columns that one micro kernel computes

typedef float vf_anywhere __attribute__((vector_size(4 * LANES), aligned(1), may_alias));
typedef int32_t vi_anywhere __attribute__((vector_size(4 * LANES), aligned(1), may_alias));

ALWAYS vf load(const float *from) { return *(const vf_anywhere *)from; }
ALWAYS void store(float *to, vf x) { *(vf_anywhere *)to = x; }
ALWAYS vi load_words(const void *from) { return *(const vi_anywhere *)from; }
ALWAYS void store_words(void *to, vi x) { *(vi_anywhere *)to = x; }
// The low bytes of words.
typedef int8_t bytes_anywhere __attribute__((vector_size(LANES), aligned(1), may_alias));

ALWAYS void store_bytes(int8_t *to, vi x) { *(bytes_anywhere *)to = __builtin_convertvector(x, bytes_anywhere); }

ALWAYS vf to_float(vi x) { return __builtin_convertvector(x, vf); }
ALWAYS vf magnitude(vf x) { return (vf)((vi)x & 0x7fffffff); }
ALWAYS vf pick(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }

// A pair of bf16 as floats: the even one of the axis that is summed over, and the odd one.
ALWAYS vf even_of(vi pairs) { return (vf)(pairs << 16); }
ALWAYS vf odd_of(vi pairs) { return (vf)(pairs & (int32_t)0xffff0000); }

ALWAYS void prefetch(const void *at) { __builtin_prefetch(at, 0, 3); }
ALWAYS void prefetch_far(const void *at) { __builtin_prefetch(at, 0, 2); }

#if LANES < 16
// In halves, so that the order is fixed.
ALWAYS float sum_of(vf x) {
    float each[LANES];
    store(each, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) each[i] += each[i + width];
    return each[0];
}

ALWAYS int32_t whole_sum_of(vi x) {
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

ALWAYS float largest_of(vf x) {
    float most = x[0];
    for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}

// Lanes from `first` to before `end` of `yes`, the others of `no`.
ALWAYS vf within(i64 first, i64 end, vf yes, vf no) {
    if (first <= 0 && end >= LANES) return yes;
    vi lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    const int32_t from = first < 0 ? 0 : first > LANES ? LANES : (int32_t)first, to = end < 0 ? 0 : end > LANES ? LANES : (int32_t)end;
    return pick((lane >= from) & (lane < to), yes, no);
}

// Where 2^n is a normal number; what is no number stays so.
ALWAYS vf exponent_range(vf x) {
    x = pick(x < -87.0f, splat(-87.0f), x);
    return pick(x > 88.0f, splat(88.0f), x);
}

ALWAYS vf times_power_of_two(vf x, vf n) { return x * (vf)((rounded(n) + 127) << 23); }

// Numbers to every second place: those between are another token's, whom another thread may be writing.
ALWAYS void spread(bf16 *to, const bf16 *from) {
    for (int i = 0; i < LANES; i++) to[2 * i] = from[i];
}
#endif

// e^x to about 2 units in the last place of a float: 2^n * p(f), x*log2(e) = n + f with f in [-1/2, 1/2].
ALWAYS vf exp_of(vf x) {
    vf y = exponent_range(x) * splat(1.44269504f), n = nearest(y), f = y - n;
    vf p = fma_of(splat(1.33336e-3f), f, splat(9.61812911e-3f));
    p = fma_of(p, f, splat(5.55041087e-2f));
    p = fma_of(p, f, splat(2.40226507e-1f));
    p = fma_of(p, f, splat(6.93147181e-1f));
    p = fma_of(p, f, splat(1.0f));
    return times_power_of_two(p, n);
}

ALWAYS vf sigmoid(vf x) { return splat(1.0f) / (splat(1.0f) + exp_of(-x)); }

// The first `count` numbers, zeros after them; and back.
ALWAYS vf load_some(const float *from, i64 count) {
    if (count >= LANES) return load(from);
    float room[LANES] = {0};
    memcpy(room, from, (size_t)count * sizeof(float));
    return load(room);
}

ALWAYS vf load_some_bf16(const bf16 *from, i64 count) {
    if (count >= LANES) return load_bf16(from);
    bf16 room[LANES] = {0};
    memcpy(room, from, (size_t)count * sizeof(bf16));
    return load_bf16(room);
}

ALWAYS void store_some_bf16(bf16 *to, vf x, i64 count) {
    if (count >= LANES) {
        store_bf16(to, x);
        return;
    }
    bf16 room[LANES];
    store_bf16(room, x);
    memcpy(to, room, (size_t)count * sizeof(bf16));
}

ALWAYS vi larger_whole(vi a, vi b) {
    const vi more = b > a;
    return (b & more) | (a & ~more);
}

// The largest magnitude of some bf16, or no number if there is one: without its sign a bf16 is ordered as a whole number.
ALWAYS float largest_magnitude(const bf16 *x, i64 k) {
    vi most = {0}, others = {0}; // two chains: each comparison waits for the one before
    i64 i = 0;
    for (; i + LANES < k; i += 2 * LANES) {
        most = larger_whole(most, (vi)load_bf16(x + i) & 0x7fffffff);
        others = larger_whole(others, (vi)load_bf16(x + i + LANES) & 0x7fffffff);
    }
    if (i < k) most = larger_whole(most, (vi)load_bf16(x + i) & 0x7fffffff);
    most = larger_whole(most, others);
    int32_t top = 0;
    for (int lane = 0; lane < LANES; lane++) top = most[lane] > top ? most[lane] : top;
    float value;
    memcpy(&value, &top, 4);
    return value;
}
