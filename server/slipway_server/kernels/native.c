// The decoder's kernels for x86-64 CPUs with AVX512-BF16 and AVX512-VNNI: linear layers, paged attention, RMSNorm, and
// rotary embedding with the write into the KV cache; and all layers of a decoder, made of them. Called from native.py, one
// call at a time.
//
// bf16 values are uint16_t. Both matrices of a product are laid out in pairs along the axis that is summed over, because
// vdpbf16ps adds a0*b0 + a1*b1 to each of 16 float lanes; in int8 (vpdpbusd) the pairs are fours.

#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint16_t bf16;
typedef int64_t i64;

#define LANES 16   // floats of a vector
#define PANEL 32   // output columns that one micro kernel computes
#define ROWS 12    // input rows of a micro kernel: 12 x 2 accumulators leave registers for what is loaded
#define BLOCK 32   // tokens of a KV block
#define TILE 32    // rows (query tokens x heads of a group) of an attention tile
#define MAX_HEAD 256
#define AHEAD 2048 // bytes of weights that are fetched before they are needed
#define UNROLLED _Pragma("GCC unroll 16") // loops over the rows of a micro kernel: their accumulators are registers
#define ALWAYS static inline __attribute__((always_inline))

// --- threads ---------------------------------------------------------------------------------------------------------
// A job's parts are handed out by a ticket that holds both how many there are and which is next: whoever draws a part
// that is there may use the job, because it does not end before that part is done. So nobody waits for a worker that
// comes late. Workers spin for a moment before they sleep: within a step the next job comes after microseconds, between
// steps the cores belong to others.

typedef void (*Task)(void *job, i64 part);

static struct {
    int threads;
    atomic_llong ticket; // parts << 32 | next
    atomic_llong done;
    atomic_int sleeping;
    Task task;
    void *job;
    pthread_mutex_t lock;
    pthread_cond_t wake;
} pool = {.threads = 1, .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

#define SPINS 10000

static int open_parts(void) {
    i64 ticket = atomic_load(&pool.ticket);
    return (ticket & 0xffffffff) < ticket >> 32;
}

static void take_parts(void) {
    while (open_parts()) {
        i64 ticket = atomic_fetch_add(&pool.ticket, 1), part = ticket & 0xffffffff;
        if (part >= ticket >> 32) return;
        pool.task(pool.job, part);
        atomic_fetch_add(&pool.done, 1);
    }
}

static void *worker(void *unused) {
    (void)unused;
    for (;;) {
        for (int spin = 0; spin < SPINS && !open_parts(); spin++) _mm_pause();
        if (!open_parts()) {
            pthread_mutex_lock(&pool.lock);
            atomic_fetch_add(&pool.sleeping, 1);
            while (!open_parts()) pthread_cond_wait(&pool.wake, &pool.lock);
            atomic_fetch_sub(&pool.sleeping, 1);
            pthread_mutex_unlock(&pool.lock);
        }
        take_parts();
    }
    return NULL;
}

// Starts the threads that help the calling one; once per process.
int slipway_start(int threads) {
    for (; pool.threads < threads; pool.threads++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, NULL)) return -1;
        pthread_detach(thread);
    }
    return pool.threads;
}

static void run(Task task, void *job, i64 parts) {
    if (pool.threads == 1 || parts == 1) {
        for (i64 part = 0; part < parts; part++) task(job, part);
        return;
    }
    pool.task = task, pool.job = job;
    atomic_store(&pool.done, 0);
    atomic_store(&pool.ticket, parts << 32);
    if (atomic_load(&pool.sleeping)) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    take_parts();
    for (int spin = 0; atomic_load(&pool.done) < parts; spin++)
        if (spin < SPINS) _mm_pause();
        else sched_yield();
}

// --- vectors ---------------------------------------------------------------------------------------------------------

ALWAYS __m512 load_bf16(const bf16 *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16));
}

ALWAYS void store_bf16(bf16 *to, __m512 values) {
    _mm256_storeu_si256((void *)to, (__m256i)_mm512_cvtneps_pbh(values));
}

// e^x to about 2 units in the last place of a float: 2^n * p(f), x*log2(e) = n + f with f in [-1/2, 1/2].
ALWAYS __m512 exp512(__m512 x) {
    __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
    __m512 n = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(y, n);
    __m512 p = _mm512_set1_ps(1.33336e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.61812911e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55041087e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40226507e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93147181e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

ALWAYS __m512 sigmoid512(__m512 x) {
    __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(one, _mm512_add_ps(one, exp512(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

// --- linear layers ---------------------------------------------------------------------------------------------------
// y[m, n] = x[m, k] . w[n, k] + bias[n], and then what `after` says.

enum After {
    NOTHING,
    ADD,      // y += other
    SILU_GATED, // a panel holds 16 columns of gate and the same 16 of up: y = silu(gate) * up
    GELU_GATED, // the same with gelu, by its tanh approximation
};

typedef struct {
    const bf16 *x;          // [m, k]
    const void *w;          // packed: bf16 [n/32, k/2, 32, 2], or int8 [n/32, k/4, 32, 4]
    const float *w_scale;   // int8: of each column
    const int32_t *w_sum;   // int8: of each column, times 128
    const float *bias;      // [n] or NULL
    const bf16 *other;      // ADD: [m, n]
    void *y;                // bf16 or float [m, n]; GATED: [m, n/2]
    i64 m, k, n;
    int after, y_float, is_int8;
} Linear;

// Rows are taken in groups of 12 at most, as equal as they can be: a small group uses its weights badly.
static i64 groups_of(const Linear *job) { return (job->m + ROWS - 1) / ROWS; }

static i64 first_row(const Linear *job, i64 group) {
    const i64 groups = groups_of(job), more = job->m % groups;
    return group * (job->m / groups) + (group < more ? group : more);
}

// The input as the micro kernels read it: for a group of rows, pair after pair (or four after four) of each row, so
// that one pointer walks through memory in order. int8 rows are uint8 around 128, with one scale each.
static struct {
    uint32_t *words;
    float *scales;
    i64 size, rows;
} packed;

static int reserve_packed(i64 words, i64 rows) {
    if (packed.size < words) {
        free(packed.words);
        packed.words = aligned_alloc(64, (size_t)((words * 4 + 63) / 64 * 64));
        packed.size = packed.words ? words : 0;
    }
    if (packed.rows < rows) {
        free(packed.scales);
        packed.scales = malloc((size_t)rows * sizeof(float));
        packed.rows = packed.scales ? rows : 0;
    }
    return packed.words && packed.scales;
}

// Rows to columns: word i of row r becomes word r of row i.
ALWAYS void transpose(__m512i row[LANES]) {
    __m512i pair[LANES], four[LANES];
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
}

// The largest magnitude, or no number if there is one: without its sign a bf16 is ordered as the whole number is.
ALWAYS float most_of(const bf16 *x, i64 k) {
    __m512i most = _mm512_setzero_si512(), magnitude = _mm512_set1_epi16(0x7fff);
    i64 i = 0;
    for (; i + 2 * LANES <= k; i += 2 * LANES)
        most = _mm512_max_epu16(most, _mm512_and_si512(magnitude, _mm512_loadu_si512(x + i)));
    __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
    if (i < k) half = _mm256_max_epu16(half, _mm256_and_si256(_mm512_castsi512_si256(magnitude), _mm256_loadu_si256((const void *)(x + i))));
    const uint32_t bits = _mm512_reduce_max_epu32(_mm512_cvtepu16_epi32(half)) << 16;
    float top;
    memcpy(&top, &bits, 4);
    return top;
}

// Up to 16 words of a row from the given one on, zeros after its end.
ALWAYS __m512i words_of(const Linear *job, const bf16 *x, i64 word, __m512 inverse) {
    if (!job->is_int8) {
        const i64 left = job->k / 2 - word;
        return _mm512_maskz_loadu_epi32(left < LANES ? (__mmask16)((1u << left) - 1) : 0xffff, x + word * 2);
    }
    __m128i fours[4] = {0};
    for (i64 i = 0; i < 4 && word * 4 + i * LANES < job->k; i++) {
        __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(load_bf16(x + word * 4 + i * LANES), inverse));
        fours[i] = _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, _mm512_set1_epi32(128)));
    }
    return _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_set_m128i(fours[1], fours[0])), _mm256_set_m128i(fours[3], fours[2]), 1
    );
}

static void pack_part(void *given, i64 part) {
    const Linear *job = given;
    const i64 first = first_row(job, part), rows = first_row(job, part + 1) - first;
    const i64 words = job->k / (job->is_int8 ? 4 : 2);
    uint32_t *to = packed.words + first * words;
    __m512 inverse[ROWS] = {0};
    for (i64 r = 0; r < rows && job->is_int8; r++) {
        const float top = most_of(job->x + (first + r) * job->k, job->k);
        packed.scales[first + r] = top / 127.0f;
        inverse[r] = _mm512_set1_ps(top > 0 ? 127.0f / top : 0.0f);
    }
    for (i64 word = 0; word < words; word += LANES) {
        const i64 count = words - word < LANES ? words - word : LANES;
        __m512i row[LANES] = {0};
        for (i64 r = 0; r < rows; r++) row[r] = words_of(job, job->x + (first + r) * job->k, word, inverse[r]);
        if (rows == 1) {
            _mm512_mask_storeu_epi32(to + word, (__mmask16)((1u << count) - 1), row[0]);
            continue;
        }
        transpose(row);
        for (i64 i = 0; i < count; i++)
            _mm512_mask_storeu_epi32(to + (word + i) * rows, (__mmask16)((1u << rows) - 1), row[i]);
    }
}

typedef struct {
    const char *at;
    i64 step; // bytes, with each step of the sum
} Next;

ALWAYS __m512 activate(__m512 gate, int after) {
    if (after == SILU_GATED) return _mm512_mul_ps(gate, sigmoid512(gate));
    // 0.5*x*(1+tanh(u)) = x*sigmoid(2u)
    __m512 cube = _mm512_mul_ps(gate, _mm512_mul_ps(gate, gate));
    __m512 u = _mm512_mul_ps(_mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), gate), _mm512_set1_ps(1.5957691216f));
    return _mm512_mul_ps(gate, sigmoid512(u));
}

ALWAYS void put(const Linear *job, i64 row, i64 column, i64 width, __m512 value) {
    if (job->y_float) _mm512_storeu_ps((float *)job->y + row * width + column, value);
    else store_bf16((bf16 *)job->y + row * width + column, value);
}

ALWAYS void finish(const Linear *job, i64 row, i64 column, __m512 a, __m512 b) {
    if (job->bias) {
        a = _mm512_add_ps(a, _mm512_loadu_ps(job->bias + column));
        b = _mm512_add_ps(b, _mm512_loadu_ps(job->bias + column + LANES));
    }
    if (job->after >= SILU_GATED) {
        put(job, row, column / 2, job->n / 2, _mm512_mul_ps(activate(a, job->after), b));
        return;
    }
    if (job->after == ADD) {
        a = _mm512_add_ps(a, load_bf16(job->other + row * job->n + column));
        b = _mm512_add_ps(b, load_bf16(job->other + row * job->n + column + LANES));
    }
    put(job, row, column, job->n, a);
    put(job, row, column + LANES, job->n, b);
}

// `rows` is a constant where this is inlined, so that the accumulators are registers. `next` is what will be read later.
ALWAYS void micro_bf16(const Linear *job, i64 row, i64 panel, Next next, const int rows) {
    const i64 pairs = job->k / 2;
    const uint32_t *x = packed.words + row * pairs;
    const char *w = (const char *)job->w + panel * pairs * 2 * PANEL * 2;
    __m512 a[ROWS], b[ROWS];
    UNROLLED
    for (int r = 0; r < rows; r++) a[r] = b[r] = _mm512_setzero_ps();
    for (i64 p = 0; p < pairs; p++, w += 128, x += rows) {
        _mm_prefetch(w + AHEAD, _MM_HINT_T0);
        _mm_prefetch(w + AHEAD + 64, _MM_HINT_T0);
        _mm_prefetch(next.at, _MM_HINT_T1);
        next.at += next.step;
        __m512bh w0 = (__m512bh)_mm512_loadu_si512(w), w1 = (__m512bh)_mm512_loadu_si512(w + 64);
        UNROLLED
        for (int r = 0; r < rows; r++) {
            __m512bh pair = (__m512bh)_mm512_set1_epi32((int)x[r]);
            a[r] = _mm512_dpbf16_ps(a[r], pair, w0);
            b[r] = _mm512_dpbf16_ps(b[r], pair, w1);
        }
    }
    UNROLLED
    for (int r = 0; r < rows; r++) finish(job, row + r, panel * PANEL, a[r], b[r]);
}

ALWAYS void micro_int8(const Linear *job, i64 row, i64 panel, Next next, const int rows) {
    const i64 fours = job->k / 4, column = panel * PANEL;
    const uint32_t *x = packed.words + row * fours;
    const char *w = (const char *)job->w + panel * fours * 4 * PANEL;
    __m512i a[ROWS], b[ROWS];
    UNROLLED
    for (int r = 0; r < rows; r++) a[r] = b[r] = _mm512_setzero_si512();
    for (i64 p = 0; p < fours; p++, w += 128, x += rows) {
        _mm_prefetch(w + AHEAD, _MM_HINT_T0);
        _mm_prefetch(w + AHEAD + 64, _MM_HINT_T0);
        _mm_prefetch(next.at, _MM_HINT_T1);
        next.at += next.step;
        __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
        UNROLLED
        for (int r = 0; r < rows; r++) {
            __m512i four = _mm512_set1_epi32((int)x[r]);
            a[r] = _mm512_dpbusd_epi32(a[r], four, w0);
            b[r] = _mm512_dpbusd_epi32(b[r], four, w1);
        }
    }
    __m512 scale_a = _mm512_loadu_ps(job->w_scale + column), scale_b = _mm512_loadu_ps(job->w_scale + column + LANES);
    __m512i sum_a = _mm512_loadu_si512(job->w_sum + column), sum_b = _mm512_loadu_si512(job->w_sum + column + LANES);
    UNROLLED
    for (int r = 0; r < rows; r++) {
        __m512 scale = _mm512_set1_ps(packed.scales[row + r]);
        __m512 va = _mm512_cvtepi32_ps(_mm512_sub_epi32(a[r], sum_a));
        __m512 vb = _mm512_cvtepi32_ps(_mm512_sub_epi32(b[r], sum_b));
        va = _mm512_mul_ps(_mm512_mul_ps(va, scale), scale_a), vb = _mm512_mul_ps(_mm512_mul_ps(vb, scale), scale_b);
        finish(job, row + r, column, va, vb);
    }
}

#define EACH_COUNT(micro) \
    switch (rows) { \
    case 1: micro(job, row, panel, next, 1); break; \
    case 2: micro(job, row, panel, next, 2); break; \
    case 3: micro(job, row, panel, next, 3); break; \
    case 4: micro(job, row, panel, next, 4); break; \
    case 5: micro(job, row, panel, next, 5); break; \
    case 6: micro(job, row, panel, next, 6); break; \
    case 7: micro(job, row, panel, next, 7); break; \
    case 8: micro(job, row, panel, next, 8); break; \
    case 9: micro(job, row, panel, next, 9); break; \
    case 10: micro(job, row, panel, next, 10); break; \
    case 11: micro(job, row, panel, next, 11); break; \
    default: micro(job, row, panel, next, 12); break; \
    }

static void tile_bf16(const Linear *job, i64 row, i64 panel, Next next, int rows) { EACH_COUNT(micro_bf16) }
static void tile_int8(const Linear *job, i64 row, i64 panel, Next next, int rows) { EACH_COUNT(micro_int8) }

// What one part computes: all groups of some panels, or some groups of one panel. A lone group of rows waits for memory:
// neighbours, so that a thread reads on in a stream. Several groups compute: single panels, and the last ones in pieces, so
// that no thread waits long for the other's last one.
typedef struct {
    i64 panel, panels, group, groups;
} Share;

#define STREAM 4 // panels of a part where there is a lone group
#define PIECES 4 // of one of the last panels

static i64 whole_panels(const Linear *job) {
    const i64 panels = job->n / PANEL, last = 2 * pool.threads;
    return panels > last ? panels - last : 0;
}

static i64 shares_of(const Linear *job) {
    const i64 panels = job->n / PANEL, whole = whole_panels(job);
    return groups_of(job) == 1 ? (panels + STREAM - 1) / STREAM : whole + (panels - whole) * PIECES;
}

static Share share_of(const Linear *job, i64 part) {
    const i64 panels = job->n / PANEL, whole = whole_panels(job), groups = groups_of(job);
    if (groups == 1) return (Share){part * STREAM, panels - part * STREAM < STREAM ? panels - part * STREAM : STREAM, 0, 1};
    if (part < whole) return (Share){part, 1, 0, groups};
    const i64 piece = (part - whole) % PIECES, first = groups * piece / PIECES;
    return (Share){whole + (part - whole) / PIECES, 1, first, groups * (piece + 1) / PIECES - first};
}

// The first rows that meet a panel wait for memory, the rest for the units that multiply. So while a panel is multiplied
// the one that this thread is likely to take next is fetched, a share of it with each group of rows: threads take parts in
// turns. A lone group reads on in a stream: nothing to gain.
static void linear_part(void *given, i64 part) {
    const Linear *job = given;
    const i64 bytes = job->k * PANEL * (job->is_int8 ? 1 : 2), groups = groups_of(job);
    const Share share = share_of(job, part);
    for (i64 panel = share.panel; panel < share.panel + share.panels; panel++) {
        const char *w = (const char *)job->w;
        const i64 then = panel + pool.threads;
        const int fetch = share.groups > 1 && share.groups == groups && then < job->n / PANEL;
        for (i64 group = share.group; group < share.group + share.groups; group++) {
            const i64 row = first_row(job, group);
            const int rows = (int)(first_row(job, group + 1) - row);
            Next next = {w + panel * bytes, 0};
            if (fetch) next = (Next){w + then * bytes + bytes * group / groups, (128 + groups - 1) / groups};
            if (job->is_int8) tile_int8(job, row, panel, next, rows);
            else tile_bf16(job, row, panel, next, rows);
        }
    }
}

int slipway_linear(const Linear *job) {
    if (!reserve_packed(job->m * (job->k / (job->is_int8 ? 4 : 2)), job->m)) return -1;
    run(pack_part, (void *)job, groups_of(job));
    run(linear_part, (void *)job, shares_of(job));
    return 0;
}

// --- weights as the micro kernels read them --------------------------------------------------------------------------

typedef struct {
    const bf16 *x;  // [n, k]
    void *w;        // as in Linear
    float *w_scale; // int8: [n], out
    int32_t *w_sum; // int8: [n], out
    i64 n, k;
    int is_int8;
} Pack;

// One row to int8; gives the sum of what comes out. A row with something that is no number has no scale either: its
// outputs must not pass for numbers.
static int32_t quantize_weights(const bf16 *x, int8_t *q, i64 k, float *scale) {
    __m512 most = _mm512_setzero_ps();
    __mmask16 no_number = 0;
    for (i64 i = 0; i < k; i += LANES) {
        __m512 v = load_bf16(x + i);
        most = _mm512_max_ps(most, _mm512_abs_ps(v));
        no_number |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    }
    const float top = _mm512_reduce_max_ps(most);
    *scale = no_number ? NAN : (top > 1e-12f ? top : 1e-12f) / 127.0f;
    __m512i sum = _mm512_setzero_si512();
    for (i64 i = 0; i < k; i += LANES) {
        __m512i whole = _mm512_cvtps_epi32(_mm512_div_ps(load_bf16(x + i), _mm512_set1_ps(*scale)));
        _mm_storeu_si128((void *)(q + i), _mm512_cvtepi32_epi8(whole));
        sum = _mm512_add_epi32(sum, whole);
    }
    return _mm512_reduce_add_epi32(sum);
}

static void pack_weights_part(void *given, i64 panel) {
    const Pack *job = given;
    const i64 words = job->k / (job->is_int8 ? 4 : 2);
    const bf16 *x = job->x + panel * PANEL * job->k;
    uint32_t *to = (uint32_t *)job->w + panel * words * PANEL;
    int8_t q[job->is_int8 ? PANEL * job->k : 1];
    for (i64 r = 0; job->is_int8 && r < PANEL; r++) {
        const i64 row = panel * PANEL + r;
        job->w_sum[row] = 128 * quantize_weights(x + r * job->k, q + r * job->k, job->k, job->w_scale + row);
    }
    const char *from = job->is_int8 ? (const char *)q : (const char *)x;
    for (i64 p = 0; p < words; p++)
        for (i64 r = 0; r < PANEL; r++) memcpy(to + p * PANEL + r, from + (r * words + p) * 4, 4);
}

void slipway_pack(const Pack *job) { run(pack_weights_part, (void *)job, job->n / PANEL); }

#define ROW_CHUNK 8 // rows of one part

// --- rows of a weight in panels, and the largest of a row -------------------------------------------------------------

typedef struct {
    const uint32_t *w;  // packed as in Linear, bf16
    const int64_t *ids; // [m]
    uint32_t *y;        // [m, k]
    i64 m, k;
} Rows;

static void rows_part(void *given, i64 row) {
    const Rows *job = given;
    const i64 pairs = job->k / 2, id = job->ids[row];
    const uint32_t *from = job->w + id / PANEL * pairs * PANEL + id % PANEL;
    for (i64 p = 0; p < pairs; p++) {
        _mm_prefetch((const char *)(from + (p + LANES) * PANEL), _MM_HINT_T0);
        job->y[row * pairs + p] = from[p * PANEL];
    }
}

void slipway_rows(const Rows *job) { run(rows_part, (void *)job, job->m); }

typedef struct {
    const float *x;  // [m, n], rows `stride` numbers apart
    int64_t *ids;    // [m], out: the first of the largest
    uint8_t *finite; // [m], out: whether all are
    i64 m, n, stride;
} Largest;

static void largest_part(void *given, i64 row) {
    const Largest *job = given;
    const float *x = job->x + row * job->stride;
    __m512 most = _mm512_set1_ps(-INFINITY);
    __m512i where = _mm512_setzero_si512();
    __mmask16 odd = 0;
    for (i64 i = 0; i < job->n; i += LANES) {
        const __mmask16 there = job->n - i < LANES ? (__mmask16)((1u << (job->n - i)) - 1) : 0xffff;
        __m512 v = _mm512_mask_loadu_ps(most, there, x + i);
        odd |= _mm512_mask_fpclass_ps_mask(there, v, 0x99); // not a number, or infinite
        const __mmask16 more = _mm512_cmp_ps_mask(v, most, _CMP_GT_OQ);
        most = _mm512_mask_mov_ps(most, more, v);
        where = _mm512_mask_mov_epi32(where, more, _mm512_set1_epi32((int)i));
    }
    __mmask16 best = _mm512_cmp_ps_mask(most, _mm512_set1_ps(_mm512_reduce_max_ps(most)), _CMP_EQ_OQ);
    where = _mm512_add_epi32(where, _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    job->ids[row] = _mm512_mask_reduce_min_epi32(best, where);
    job->finite[row] = !odd;
}

void slipway_largest(const Largest *job) { run(largest_part, (void *)job, job->m); }

// --- RMSNorm ---------------------------------------------------------------------------------------------------------

typedef struct {
    const bf16 *x;
    const float *weight;
    bf16 *y;
    i64 m, k;
    float epsilon;
} Norm;

ALWAYS float inverse_rms(const bf16 *x, i64 k, float epsilon) {
    __m512 sum = _mm512_setzero_ps();
    for (i64 i = 0; i < k; i += LANES) {
        __m512 v = load_bf16(x + i);
        sum = _mm512_fmadd_ps(v, v, sum);
    }
    return 1.0f / sqrtf(_mm512_reduce_add_ps(sum) / (float)k + epsilon);
}

ALWAYS void normalize(const bf16 *x, const float *weight, bf16 *y, i64 k, float epsilon) {
    __m512 inverse = _mm512_set1_ps(inverse_rms(x, k, epsilon));
    for (i64 i = 0; i < k; i += LANES)
        store_bf16(y + i, _mm512_mul_ps(_mm512_mul_ps(load_bf16(x + i), inverse), _mm512_loadu_ps(weight + i)));
}

static void norm_part(void *given, i64 part) {
    const Norm *job = given;
    i64 last = (part + 1) * ROW_CHUNK < job->m ? (part + 1) * ROW_CHUNK : job->m;
    for (i64 row = part * ROW_CHUNK; row < last; row++)
        normalize(job->x + row * job->k, job->weight, job->y + row * job->k, job->k, job->epsilon);
}

void slipway_norm(const Norm *job) { run(norm_part, (void *)job, (job->m + ROW_CHUNK - 1) / ROW_CHUNK); }

// --- rotary embedding, and the write into the cache ------------------------------------------------------------------
// Keys of a block: [kv head, size/2, 32 tokens, 2]; values: [kv head, 32/2, size, 2]. In int8 they lie alike, with one
// float for each token and head beside them ([kv head, 32 tokens]) that all numbers of its key, or value, are times of.

typedef struct {
    const bf16 *qkv;           // [tokens, (heads + 2*kv_heads) * size]
    const float *q_norm, *k_norm; // [size] or NULL
    const float *cos, *sin;    // [positions, rotary/2]
    const int32_t *positions;  // [tokens]
    const int32_t *slot_mapping;     // [tokens]: block * 32 + offset in the block
    bf16 *q;                   // out: [tokens, heads, size]
    void *keys, *values;       // of this layer: bf16, or int8 where there are scales
    float *key_scales, *value_scales; // or NULL
    i64 tokens, heads, kv_heads, size, rotary;
    float epsilon;
} Rope;

ALWAYS void rotate(bf16 *x, const float *cos, const float *sin, i64 half) {
    for (i64 i = 0; i < half; i += LANES) {
        __mmask16 mask = half - i < LANES ? (__mmask16)((1u << (half - i)) - 1) : 0xffff;
        __m512 c = _mm512_maskz_loadu_ps(mask, cos + i), s = _mm512_maskz_loadu_ps(mask, sin + i);
        __m512 a = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x + i)), 16));
        __m512 b = _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x + half + i)), 16));
        __m512 lower = _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)), upper = _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s));
        _mm256_mask_storeu_epi16(x + i, mask, (__m256i)_mm512_cvtneps_pbh(lower));
        _mm256_mask_storeu_epi16(x + half + i, mask, (__m256i)_mm512_cvtneps_pbh(upper));
    }
}

ALWAYS void turned(const Rope *job, const bf16 *from, const float *norm, i64 token, bf16 *to) {
    if (norm) normalize(from, norm, to, job->size, job->epsilon);
    else memcpy(to, from, (size_t)job->size * sizeof(bf16));
    i64 half = job->rotary / 2, at = job->positions[token] * half;
    if (half) rotate(to, job->cos + at, job->sin + at, half);
}

// To whole numbers from -127 to 127; returns their scale. They hide what is not finite: the scale says it for all of them.
static float to_int8(const bf16 *x, int8_t *whole, i64 size) {
    __m512 most = _mm512_setzero_ps();
    __mmask16 none = 0;
    for (i64 i = 0; i < size; i += LANES) {
        __m512 v = load_bf16(x + i);
        most = _mm512_max_ps(most, _mm512_abs_ps(v));
        none |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    }
    float top = none ? NAN : _mm512_reduce_max_ps(most);
    __m512 inverse = _mm512_set1_ps(top > 0 ? 127.0f / top : 0.0f);
    for (i64 i = 0; i < size; i += LANES) {
        __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(load_bf16(x + i), inverse));
        _mm_storeu_si128((void *)(whole + i), _mm512_cvtepi32_epi8(rounded));
    }
    return top / 127.0f;
}

// One token's key and value of one head into its tile, the block's numbers of that head.
static void keep(const Rope *job, i64 tile, i64 offset, const uint32_t *pairs, const bf16 *from) {
    const i64 size = job->size;
    uint32_t *key = (uint32_t *)((bf16 *)job->keys + tile * BLOCK * size) + offset;
    for (i64 i = 0; i < size / 2; i++) key[i * BLOCK] = pairs[i];
    bf16 *value = (bf16 *)job->values + tile * BLOCK * size + offset / 2 * 2 * size;
    // A pair's other half is another token's, whom another thread may be writing.
    const __mmask32 half = offset % 2 ? 0xaaaaaaaa : 0x55555555;
    for (i64 i = 0; i < size; i += LANES) {
        __m512i each = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(from + i)));
        _mm512_mask_storeu_epi16(value + i * 2, half, _mm512_or_si512(each, _mm512_slli_epi32(each, 16)));
    }
}

static void keep_int8(const Rope *job, i64 tile, i64 offset, const uint32_t *pairs, const bf16 *from) {
    const i64 size = job->size;
    int8_t whole[MAX_HEAD];
    job->key_scales[tile * BLOCK + offset] = to_int8((const bf16 *)pairs, whole, size);
    int8_t *key = (int8_t *)job->keys + tile * BLOCK * size + offset * 2;
    for (i64 i = 0; i < size / 2; i++) memcpy(key + i * BLOCK * 2, whole + i * 2, 2);
    job->value_scales[tile * BLOCK + offset] = to_int8(from, whole, size);
    int8_t *value = (int8_t *)job->values + tile * BLOCK * size + offset / 2 * 2 * size + offset % 2;
    for (i64 i = 0; i < size; i++) value[i * 2] = whole[i];
}

static void rope_part(void *given, i64 part) {
    const Rope *job = given;
    i64 size = job->size, width = (job->heads + 2 * job->kv_heads) * size;
    const i64 first = part * ROW_CHUNK, last = first + ROW_CHUNK < job->tokens ? first + ROW_CHUNK : job->tokens;
    uint32_t pairs[MAX_HEAD / 2];
    for (i64 token = first; token < last; token++) {
        const bf16 *row = job->qkv + token * width;
        for (i64 h = 0; h < job->heads; h++)
            turned(job, row + h * size, job->q_norm, token, job->q + (token * job->heads + h) * size);
    }
    // Head by head: a block's numbers of one head lie together.
    for (i64 h = 0; h < job->kv_heads; h++)
        for (i64 token = first; token < last; token++) {
            const bf16 *row = job->qkv + token * width + (job->heads + h) * size;
            const i64 block = job->slot_mapping[token] / BLOCK, offset = job->slot_mapping[token] % BLOCK;
            turned(job, row, job->k_norm, token, (bf16 *)pairs);
            (job->key_scales ? keep_int8 : keep)(job, block * job->kv_heads + h, offset, pairs, row + job->kv_heads * size);
        }
}

void slipway_rope(const Rope *job) { run(rope_part, (void *)job, (job->tokens + ROW_CHUNK - 1) / ROW_CHUNK); }

// --- attention -------------------------------------------------------------------------------------------------------
// Flash attention over paged keys and values: a tile holds the heads of one group for some query tokens of a sequence.

typedef struct {
    const bf16 *q;            // [tokens, heads, size]
    const void *keys, *values; // bf16, or int8 where there are scales
    const float *key_scales, *value_scales; // or NULL
    bf16 *y;                  // [tokens, heads, size]
    const int32_t *block_tables;    // [spans, table_width]: blocks of each sequence
    const int32_t *first;     // [spans]: row of the first query token
    const int32_t *counts;    // [spans]: query tokens
    const int32_t *starts;    // [spans]: position of the first query token
    i64 spans, table_width, heads, kv_heads, size;
    i64 window;               // 0: all
    float scale, cap;         // 0: no cap
} Attend;

// Sums that wait for their own last addend leave the units idle, so each is made of two halves; for many rows too, which
// would not need it: a token's attention is the same to the bit whoever is beside it.
#define CHAINS 2
#define MOST_SUMS 16 // vectors of sums that registers hold beside what is loaded

// S[r, 32] of `rows` rows against one block of keys. `ahead` is what will be read next: blocks lie anywhere in memory, and
// the processor's own prefetching does not follow.
ALWAYS void scores(const uint32_t *q, const bf16 *keys, const bf16 *ahead, float *s, i64 pairs, const int rows) {
    __m512 a[6 * CHAINS], b[6 * CHAINS];
    UNROLLED
    for (int i = 0; i < rows * CHAINS; i++) a[i] = b[i] = _mm512_setzero_ps();
    for (i64 p = 0; p < pairs; p += CHAINS) {
        UNROLLED
        for (int c = 0; c < CHAINS; c++) {
            const i64 at = (p + c) * 64;
            _mm_prefetch((const char *)(ahead + at), _MM_HINT_T1);
            _mm_prefetch((const char *)(ahead + at + 32), _MM_HINT_T1);
            __m512bh k0 = (__m512bh)_mm512_loadu_si512(keys + at), k1 = (__m512bh)_mm512_loadu_si512(keys + at + 32);
            UNROLLED
            for (int r = 0; r < rows; r++) {
                __m512bh pair = (__m512bh)_mm512_set1_epi32((int)q[r * pairs + p + c]);
                a[c * rows + r] = _mm512_dpbf16_ps(a[c * rows + r], pair, k0);
                b[c * rows + r] = _mm512_dpbf16_ps(b[c * rows + r], pair, k1);
            }
        }
    }
    UNROLLED
    for (int r = 0; r < rows; r++) {
        _mm512_storeu_ps(s + r * BLOCK, _mm512_add_ps(a[r], a[rows + r]));
        _mm512_storeu_ps(s + r * BLOCK + LANES, _mm512_add_ps(b[r], b[rows + r]));
    }
}

// acc[r, size] = acc[r, size] * factor[r] + P[r, 32] V[32, size], `vectors` times 16 columns at a time.
ALWAYS void weigh(
    const uint32_t *p, const bf16 *values, const bf16 *ahead, float *acc, const float *factor, i64 size, const int rows,
    const int vectors
) {
    for (i64 column = 0; column < size; column += vectors * LANES) {
        __m512 a[MOST_SUMS];
        UNROLLED
        for (int r = 0; r < rows; r++)
            UNROLLED
            for (int v = 0; v < vectors; v++)
                a[r * vectors + v] = _mm512_mul_ps(_mm512_loadu_ps(acc + r * size + column + v * LANES), _mm512_set1_ps(factor[r]));
        for (int t = 0; t < BLOCK / 2; t++) {
            const i64 at = (t * size + column) * 2;
            __m512bh pair[6];
            UNROLLED
            for (int r = 0; r < rows; r++) pair[r] = (__m512bh)_mm512_set1_epi32((int)p[r * (BLOCK / 2) + t]);
            UNROLLED
            for (int v = 0; v < vectors; v++) {
                _mm_prefetch((const char *)(ahead + at + v * 32), _MM_HINT_T1);
                __m512bh value = (__m512bh)_mm512_loadu_si512(values + at + v * 32);
                UNROLLED
                for (int r = 0; r < rows; r++) a[r * vectors + v] = _mm512_dpbf16_ps(a[r * vectors + v], pair[r], value);
            }
        }
        UNROLLED
        for (int r = 0; r < rows; r++)
            UNROLLED
            for (int v = 0; v < vectors; v++) _mm512_storeu_ps(acc + r * size + column + v * LANES, a[r * vectors + v]);
    }
}

static void all_scores(const uint32_t *q, const bf16 *keys, const bf16 *ahead, float *s, i64 pairs, int rows) {
    for (; rows >= 6; rows -= 6, q += 6 * pairs, s += 6 * BLOCK) scores(q, keys, ahead, s, pairs, 6);
    switch (rows) {
    case 5: scores(q, keys, ahead, s, pairs, 5); break;
    case 4: scores(q, keys, ahead, s, pairs, 4); break;
    case 3: scores(q, keys, ahead, s, pairs, 3); break;
    case 2: scores(q, keys, ahead, s, pairs, 2); break;
    case 1: scores(q, keys, ahead, s, pairs, 1); break;
    }
}

#define WEIGH(rows, vectors) weigh(p, values, ahead, acc, factor, size, rows, vectors)

// Few rows wait for memory, so they take whole rows of values, in the order in which those lie there. Many rows multiply.
static void weigh_all(
    const uint32_t *p, const bf16 *values, const bf16 *ahead, float *acc, const float *factor, i64 size, int rows
) {
    for (; rows >= 6; rows -= 6, p += 3 * BLOCK, acc += 6 * size, factor += 6) WEIGH(6, 2);
    const int by_8 = size % (8 * LANES) == 0, by_4 = size % (4 * LANES) == 0;
    switch (rows) {
    case 5: WEIGH(5, 2); break;
    case 4: if (by_4) WEIGH(4, 4); else WEIGH(4, 2); break;
    case 3: if (by_4) WEIGH(3, 4); else WEIGH(3, 2); break;
    case 2: if (by_8) WEIGH(2, 8); else WEIGH(2, 2); break;
    case 1: if (by_8) WEIGH(1, 8); else WEIGH(1, 2); break;
    }
}

// What a head's tokens of a block are scaled by, in int8; NULL in bf16.
typedef struct {
    const float *keys, *values;
} Scales;

ALWAYS Scales scales_of(const Attend *job, i64 token) {
    if (!job->key_scales) return (Scales){NULL, NULL};
    return (Scales){job->key_scales + token, job->value_scales + token};
}

// One row of scores to weights: masked, with the running maximum and sum. `seen` keys of the block are visible from `from`.
ALWAYS void soften(
    const Attend *job, Scales scales, float *s, uint32_t *p, i64 from, i64 seen, float *most, float *sum, float *factor
) {
    uint32_t visible = seen >= BLOCK ? ~0u : seen <= 0 ? 0u : (1u << seen) - 1;
    if (from > 0) visible &= from >= BLOCK ? 0u : ~0u << from;
    __mmask16 low = (__mmask16)visible, high = (__mmask16)(visible >> LANES);
    __m512 a = _mm512_mul_ps(_mm512_loadu_ps(s), _mm512_set1_ps(job->scale));
    __m512 b = _mm512_mul_ps(_mm512_loadu_ps(s + LANES), _mm512_set1_ps(job->scale));
    if (scales.keys) {
        a = _mm512_mul_ps(a, _mm512_loadu_ps(scales.keys)), b = _mm512_mul_ps(b, _mm512_loadu_ps(scales.keys + LANES));
    }
    if (job->cap > 0) { // cap*tanh(x/cap) = cap*(2*sigmoid(2x/cap) - 1)
        __m512 cap = _mm512_set1_ps(job->cap), twice = _mm512_set1_ps(2.0f / job->cap);
        a = _mm512_fmsub_ps(_mm512_add_ps(cap, cap), sigmoid512(_mm512_mul_ps(a, twice)), cap);
        b = _mm512_fmsub_ps(_mm512_add_ps(cap, cap), sigmoid512(_mm512_mul_ps(b, twice)), cap);
    }
    __m512 none = _mm512_set1_ps(-INFINITY);
    a = _mm512_mask_blend_ps(low, none, a), b = _mm512_mask_blend_ps(high, none, b);
    float top = _mm512_reduce_max_ps(_mm512_max_ps(a, b));
    top = top > *most ? top : *most;
    float base = top == -INFINITY ? 0.0f : top;
    *factor = top == *most ? 1.0f : *most == -INFINITY ? 0.0f : expf(*most - base);
    a = _mm512_maskz_mov_ps(low, exp512(_mm512_sub_ps(a, _mm512_set1_ps(base))));
    b = _mm512_maskz_mov_ps(high, exp512(_mm512_sub_ps(b, _mm512_set1_ps(base))));
    *sum = *sum * *factor + _mm512_reduce_add_ps(_mm512_add_ps(a, b));
    *most = top;
    if (scales.values) { // of tokens that are not seen they may be anything
        a = _mm512_maskz_mul_ps(low, a, _mm512_loadu_ps(scales.values));
        b = _mm512_maskz_mul_ps(high, b, _mm512_loadu_ps(scales.values + LANES));
    }
    store_bf16((bf16 *)p, a);
    store_bf16((bf16 *)p + LANES, b);
}

// Where the keys, and the values, of a head's block lie in their caches.
ALWAYS i64 tile_at(const Attend *job, i64 span, i64 head, i64 block) {
    return (job->block_tables[span * job->table_width + block] * job->kv_heads + head) * BLOCK * job->size;
}

// Whole numbers as bf16, which has each of them exactly. What is read next is fetched meanwhile.
static void widen(const int8_t *from, const int8_t *ahead, bf16 *to, i64 count) {
    for (i64 i = 0; i < count; i += 2 * LANES) {
        _mm_prefetch((const char *)(ahead + i), _MM_HINT_T1);
        __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(from + i)));
        __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(from + i + LANES)));
        __m512bh both = _mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
        _mm512_storeu_si512(to + i, (__m512i)both);
    }
}

ALWAYS const void *place_of(const Attend *job, const void *cache, i64 at) {
    return job->key_scales ? (const void *)((const int8_t *)cache + at) : (const void *)((const bf16 *)cache + at);
}

// Where to read a tile as bf16: in int8 that is `wide`, and what comes `ahead` was fetched on the way.
ALWAYS const bf16 *numbers_of(const Attend *job, const void *from, const void **ahead, bf16 *wide) {
    if (!job->key_scales) return from;
    widen(from, *ahead, wide, BLOCK * job->size);
    return *ahead = wide;
}

static i64 queries_per_tile(const Attend *job) { return TILE / (job->heads / job->kv_heads); }

static i64 tiles_of(const Attend *job, i64 span) {
    i64 each = queries_per_tile(job);
    return (job->counts[span] + each - 1) / each;
}

static i64 queries_of(const Attend *job, i64 span, i64 tile) {
    const i64 each = queries_per_tile(job), left = job->counts[span] - tile * each;
    return left < each ? left : each;
}

// Some heads side by side: they are neighbours in memory, and memory is read best in long streams.
static void attend_tile(const Attend *job, i64 span, i64 head, i64 heads, i64 tile) {
    const i64 size = job->size, width = BLOCK * size, group = job->heads / job->kv_heads;
    const i64 begin = tile * queries_per_tile(job), queries = queries_of(job, span, tile), rows = queries * group;
    bf16 q[TILE * MAX_HEAD];
    float acc[TILE * MAX_HEAD], s[TILE * BLOCK], most[TILE], sum[TILE], factor[TILE];
    uint32_t p[TILE * BLOCK / 2];
    bf16 wide[BLOCK * MAX_HEAD];
    const bf16 *from = job->q + ((job->first[span] + begin) * job->heads + head * group) * size;
    for (i64 h = 0; h < heads; h++)
        for (i64 i = 0; i < queries; i++)
            memcpy(q + (h * rows + i * group) * size, from + (i * job->heads + h * group) * size, (size_t)(group * size) * sizeof(bf16));
    memset(acc, 0, sizeof(float) * (size_t)(heads * rows * size));
    for (i64 r = 0; r < heads * rows; r++) most[r] = -INFINITY, sum[r] = 0;
    const i64 position = job->starts[span] + begin, last = position + queries - 1;
    const i64 oldest = job->window > 0 && position - job->window + 1 > 0 ? position - job->window + 1 : 0;
    for (i64 block = oldest / BLOCK; block <= last / BLOCK; block++) {
        const i64 at = tile_at(job, span, head, block), next = tile_at(job, span, head, block < last / BLOCK ? block + 1 : block);
        for (i64 h = 0; h < heads; h++) {
            const i64 here = at + h * width;
            const Scales scales = scales_of(job, here / size);
            const void *ahead = h + 1 < heads ? place_of(job, job->keys, here + width) : place_of(job, job->values, at);
            const bf16 *keys = numbers_of(job, place_of(job, job->keys, here), &ahead, wide);
            all_scores((const uint32_t *)(q + h * rows * size), keys, ahead, s, size / 2, (int)rows);
            for (i64 r = 0, each = h * rows; r < rows; r++, each++) {
                i64 now = position + r / group, since = job->window > 0 ? now - job->window + 1 - block * BLOCK : 0;
                i64 seen = now + 1 - block * BLOCK;
                soften(job, scales, s + r * BLOCK, p + each * BLOCK / 2, since, seen, most + each, sum + each, factor + each);
            }
        }
        for (i64 h = 0; h < heads; h++) {
            const i64 each = h * rows, here = at + h * width;
            const void *ahead = h + 1 < heads ? place_of(job, job->values, here + width) : place_of(job, job->keys, next);
            const bf16 *values = numbers_of(job, place_of(job, job->values, here), &ahead, wide);
            weigh_all(p + each * BLOCK / 2, values, ahead, acc + each * size, factor + each, size, (int)rows);
        }
    }
    bf16 *to = job->y + ((job->first[span] + begin) * job->heads + head * group) * size;
    for (i64 h = 0; h < heads; h++)
        for (i64 r = 0; r < rows; r++) {
            bf16 *y = to + (r / group * job->heads + h * group + r % group) * size;
            const float *total = acc + (h * rows + r) * size;
            __m512 inverse = _mm512_set1_ps(1.0f / sum[h * rows + r]);
            for (i64 c = 0; c < size; c += LANES) store_bf16(y + c, _mm512_mul_ps(_mm512_loadu_ps(total + c), inverse));
        }
}

typedef struct {
    const Attend *job;
    i64 most; // heads side by side
} Spread;

// Heads that one part takes: where there are few queries, as many as fit into a tile.
static i64 heads_of(const Spread *spread, i64 span) {
    const Attend *job = spread->job;
    const i64 rows = queries_of(job, span, 0) * (job->heads / job->kv_heads);
    i64 heads = 1;
    while (heads * 2 <= spread->most && heads * 2 * rows <= TILE && job->kv_heads % (heads * 2) == 0) heads *= 2;
    return heads;
}

static i64 parts_of(const Spread *spread, i64 span) {
    return tiles_of(spread->job, span) * (spread->job->kv_heads / heads_of(spread, span));
}

static i64 all_parts(const Spread *spread) {
    i64 parts = 0;
    for (i64 span = 0; span < spread->job->spans; span++) parts += parts_of(spread, span);
    return parts;
}

// Later tiles of a prompt see more keys: they are handed out first, so that no thread ends alone with a long one.
static void attend_part(void *given, i64 part) {
    const Spread *spread = given;
    const Attend *job = spread->job;
    i64 span = job->spans - 1, left = part;
    while (left >= parts_of(spread, span)) left -= parts_of(spread, span--);
    const i64 heads = heads_of(spread, span), groups = job->kv_heads / heads;
    attend_tile(job, span, left % groups * heads, heads, tiles_of(job, span) - 1 - left / groups);
}

#define PARTS_EACH 4 // of a thread, at least: the last one to end is not long alone

void slipway_attend(const Attend *job) {
    Spread spread = {job, job->kv_heads};
    while (spread.most > 1 && all_parts(&spread) < PARTS_EACH * pool.threads) spread.most /= 2;
    run(attend_part, &spread, all_parts(&spread));
}

// --- a decoder's layers ----------------------------------------------------------------------------------------------
// All of them in one call: the other cores wait for nobody but this one, and small steps are short.

typedef struct {
    Norm norm_in, norm_attended, norm_mlp, norm_mixed; // those of what is added: only where there is a weight
    Linear qkv, out, gated, down;
    Rope rope;
    Attend attend;
} Layer;

enum Part { LINEARS, ATTENTION, NORMS, PARTS };

typedef struct {
    bf16 *x;                            // [tokens, hidden], changed
    bf16 *y;                            // [num_rows, hidden], out
    bf16 *normed, *addend;              // [tokens, hidden]
    bf16 *qkv, *q, *attended, *inner;   // [tokens, what the layers make of it]
    const int32_t *positions, *slot_mapping, *block_tables, *first, *counts, *starts; // as in Rope and Attend
    const i64 *rows;                    // [num_rows]: tokens whose output of the last layer is needed
    i64 *spent_ns;                      // [PARTS], added to
    i64 tokens, hidden, spans, table_width, num_rows;
} Step;

static i64 now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int multiply(const Step *step, const Linear *layer, const bf16 *x, bf16 *y, const bf16 *other, i64 m) {
    const i64 began = now_ns();
    Linear job = *layer;
    job.x = x, job.y = y, job.m = m;
    if (other) job.after = ADD, job.other = other;
    const int failed = slipway_linear(&job);
    step->spent_ns[LINEARS] += now_ns() - began;
    return failed;
}

static void norm_rows(const Step *step, const Norm *layer, const bf16 *x, bf16 *y, i64 m) {
    const i64 began = now_ns();
    Norm job = *layer;
    job.x = x, job.y = y, job.m = m;
    slipway_norm(&job);
    step->spent_ns[NORMS] += now_ns() - began;
}

static void attend_all(const Step *step, const Layer *layer) {
    const i64 began = now_ns();
    Rope rope = layer->rope;
    rope.qkv = step->qkv, rope.q = step->q, rope.tokens = step->tokens;
    rope.positions = step->positions, rope.slot_mapping = step->slot_mapping;
    slipway_rope(&rope);
    Attend attend = layer->attend;
    attend.q = step->q, attend.y = step->attended;
    attend.block_tables = step->block_tables, attend.table_width = step->table_width;
    attend.first = step->first, attend.counts = step->counts, attend.starts = step->starts, attend.spans = step->spans;
    slipway_attend(&attend);
    step->spent_ns[ATTENTION] += now_ns() - began;
}

// x += what the layer, and perhaps a norm after it, makes of y
static int add_to(const Step *step, bf16 *x, const bf16 *y, const Linear *layer, const Norm *after, i64 m) {
    if (!after->weight) return multiply(step, layer, y, x, x, m);
    if (multiply(step, layer, y, step->addend, NULL, m)) return -1;
    norm_rows(step, after, step->addend, step->addend, m);
    for (i64 i = 0; i < m * step->hidden; i += LANES)
        store_bf16(x + i, _mm512_add_ps(load_bf16(x + i), load_bf16(step->addend + i)));
    return 0;
}

static void take_rows(const Step *step, const bf16 *from, bf16 *to, i64 width) {
    for (i64 i = 0; i < step->num_rows; i++)
        memcpy(to + i * width, from + step->rows[i] * width, (size_t)width * sizeof(bf16));
}

// Of the last layer only the needed rows go on after attention: what later tokens need of the others is in the cache.
static int run_layer(const Step *step, const Layer *layer, int last) {
    norm_rows(step, &layer->norm_in, step->x, step->normed, step->tokens);
    if (multiply(step, &layer->qkv, step->normed, step->qkv, NULL, step->tokens)) return -1;
    attend_all(step, layer);
    bf16 *x = step->x, *attended = step->attended;
    i64 m = step->tokens;
    if (last) {
        take_rows(step, x, step->y, step->hidden);
        take_rows(step, attended, step->q, layer->rope.heads * layer->rope.size);
        x = step->y, attended = step->q, m = step->num_rows;
    }
    if (add_to(step, x, attended, &layer->out, &layer->norm_attended, m)) return -1;
    norm_rows(step, &layer->norm_mlp, x, step->normed, m);
    if (multiply(step, &layer->gated, step->normed, step->inner, NULL, m)) return -1;
    return add_to(step, x, step->inner, &layer->down, &layer->norm_mixed, m);
}

int slipway_layers(const Layer *layers, i64 count, const Step *step) {
    for (i64 i = 0; i < count; i++)
        if (run_layer(step, layers + i, i == count - 1)) return -1;
    return 0;
}
