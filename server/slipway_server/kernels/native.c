// The decoder's kernels for x86-64 CPUs with AVX512-BF16 and AVX512-VNNI: linear layers, paged attention, RMSNorm, and
// rotary embedding with the write into the KV cache. Called from __init__.py, one call at a time.
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
// Parts of a job are handed out by a counter. Workers spin for a moment before they sleep: within a step the next job
// comes after microseconds, between steps the cores belong to others.

typedef void (*Task)(void *job, i64 part);

static struct {
    int threads;
    atomic_int generation, working;
    atomic_llong next;
    i64 parts;
    Task task;
    void *job;
    pthread_mutex_t lock;
    pthread_cond_t wake;
} pool = {.threads = 1, .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

#define SPINS 2000

static void take_parts(void) {
    for (i64 part; (part = atomic_fetch_add(&pool.next, 1)) < pool.parts;) pool.task(pool.job, part);
}

static void *worker(void *unused) {
    (void)unused;
    for (int seen = 0;;) {
        for (int spin = 0; spin < SPINS && atomic_load(&pool.generation) == seen; spin++) _mm_pause();
        if (atomic_load(&pool.generation) == seen) {
            pthread_mutex_lock(&pool.lock);
            while (atomic_load(&pool.generation) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
            pthread_mutex_unlock(&pool.lock);
        }
        seen = atomic_load(&pool.generation);
        take_parts();
        atomic_fetch_sub(&pool.working, 1);
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
    pool.task = task, pool.job = job, pool.parts = parts;
    atomic_store(&pool.next, 0);
    if (pool.threads > 1 && parts > 1) {
        atomic_store(&pool.working, pool.threads - 1);
        pthread_mutex_lock(&pool.lock);
        atomic_fetch_add(&pool.generation, 1);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
        take_parts();
        for (int spin = 0; atomic_load(&pool.working); spin++)
            if (spin < SPINS) _mm_pause();
            else sched_yield();
    } else {
        take_parts();
    }
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

// The input as the micro kernels read it: for 12 rows at a time, pair after pair (or four after four) of each row, so
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

static float quantize(const bf16 *x, uint8_t *q, i64 k) {
    __m512 most = _mm512_setzero_ps();
    for (i64 i = 0; i < k; i += LANES) most = _mm512_max_ps(most, _mm512_abs_ps(load_bf16(x + i)));
    float top = _mm512_reduce_max_ps(most);
    __m512 inverse = _mm512_set1_ps(top > 0 ? 127.0f / top : 0.0f);
    for (i64 i = 0; i < k; i += LANES) {
        __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(load_bf16(x + i), inverse));
        _mm_storeu_si128((void *)(q + i), _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, _mm512_set1_epi32(128))));
    }
    return top / 127.0f;
}

static void pack_part(void *given, i64 part) {
    const Linear *job = given;
    const i64 first = part * ROWS, rows = job->m - first < ROWS ? job->m - first : ROWS;
    const i64 words = job->k / (job->is_int8 ? 4 : 2);
    uint32_t *to = packed.words + first * words;
    for (i64 r = 0; r < rows; r++) {
        const bf16 *x = job->x + (first + r) * job->k;
        if (!job->is_int8) {
            for (i64 p = 0; p < words; p++) memcpy(to + p * rows + r, x + p * 2, 4);
            continue;
        }
        uint8_t q[job->k];
        packed.scales[first + r] = quantize(x, q, job->k);
        for (i64 p = 0; p < words; p++) memcpy(to + p * rows + r, q + p * 4, 4);
    }
}

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

// `rows` is a constant where this is inlined, so that the accumulators are registers.
ALWAYS void micro_bf16(const Linear *job, i64 row, i64 panel, const int rows) {
    const i64 pairs = job->k / 2;
    const uint32_t *x = packed.words + row * pairs;
    const char *w = (const char *)job->w + panel * pairs * 2 * PANEL * 2;
    __m512 a[ROWS], b[ROWS];
    UNROLLED
    for (int r = 0; r < rows; r++) a[r] = b[r] = _mm512_setzero_ps();
    for (i64 p = 0; p < pairs; p++, w += 128, x += rows) {
        _mm_prefetch(w + AHEAD, _MM_HINT_T0);
        _mm_prefetch(w + AHEAD + 64, _MM_HINT_T0);
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

ALWAYS void micro_int8(const Linear *job, i64 row, i64 panel, const int rows) {
    const i64 fours = job->k / 4, column = panel * PANEL;
    const uint32_t *x = packed.words + row * fours;
    const char *w = (const char *)job->w + panel * fours * 4 * PANEL;
    __m512i a[ROWS], b[ROWS];
    UNROLLED
    for (int r = 0; r < rows; r++) a[r] = b[r] = _mm512_setzero_si512();
    for (i64 p = 0; p < fours; p++, w += 128, x += rows) {
        _mm_prefetch(w + AHEAD, _MM_HINT_T0);
        _mm_prefetch(w + AHEAD + 64, _MM_HINT_T0);
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
    case 1: micro(job, row, panel, 1); break; \
    case 2: micro(job, row, panel, 2); break; \
    case 3: micro(job, row, panel, 3); break; \
    case 4: micro(job, row, panel, 4); break; \
    case 5: micro(job, row, panel, 5); break; \
    case 6: micro(job, row, panel, 6); break; \
    case 7: micro(job, row, panel, 7); break; \
    case 8: micro(job, row, panel, 8); break; \
    case 9: micro(job, row, panel, 9); break; \
    case 10: micro(job, row, panel, 10); break; \
    case 11: micro(job, row, panel, 11); break; \
    default: micro(job, row, panel, 12); break; \
    }

static void tile_bf16(const Linear *job, i64 row, i64 panel, int rows) { EACH_COUNT(micro_bf16) }
static void tile_int8(const Linear *job, i64 row, i64 panel, int rows) { EACH_COUNT(micro_int8) }

#define CHUNK 4      // panels of one part: neighbours in memory, so that one thread reads on in a stream

static void linear_part(void *given, i64 part) {
    const Linear *job = given;
    i64 panels = job->n / PANEL, last = (part + 1) * CHUNK < panels ? (part + 1) * CHUNK : panels;
    for (i64 panel = part * CHUNK; panel < last; panel++)
        for (i64 row = 0; row < job->m; row += ROWS) {
            int rows = job->m - row < ROWS ? (int)(job->m - row) : ROWS;
            if (job->is_int8) tile_int8(job, row, panel, rows);
            else tile_bf16(job, row, panel, rows);
        }
}

int slipway_linear(const Linear *job) {
    if (!reserve_packed(job->m * (job->k / (job->is_int8 ? 4 : 2)), job->m)) return -1;
    run(pack_part, (void *)job, (job->m + ROWS - 1) / ROWS);
    run(linear_part, (void *)job, (job->n / PANEL + CHUNK - 1) / CHUNK);
    return 0;
}

#define ROW_CHUNK 8 // rows of one part

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
// Keys of a block: [kv head, size/2, 32 tokens, 2]; values: [kv head, 32/2, size, 2].

typedef struct {
    const bf16 *qkv;           // [tokens, (heads + 2*kv_heads) * size]
    const float *q_norm, *k_norm; // [size] or NULL
    const float *cos, *sin;    // [positions, rotary/2]
    const int32_t *positions;  // [tokens]
    const int32_t *places;     // [tokens]: block * 32 + place in it
    bf16 *q;                   // out: [tokens, heads, size]
    bf16 *keys, *values;       // of this layer
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

static void rope_part(void *given, i64 part) {
    const Rope *job = given;
    i64 size = job->size, width = (job->heads + 2 * job->kv_heads) * size;
    i64 last = (part + 1) * ROW_CHUNK < job->tokens ? (part + 1) * ROW_CHUNK : job->tokens;
    uint32_t pairs[MAX_HEAD / 2];
    for (i64 token = part * ROW_CHUNK; token < last; token++) {
        const bf16 *row = job->qkv + token * width;
        for (i64 h = 0; h < job->heads; h++)
            turned(job, row + h * size, job->q_norm, token, job->q + (token * job->heads + h) * size);
        i64 block = job->places[token] / BLOCK, place = job->places[token] % BLOCK;
        for (i64 h = 0; h < job->kv_heads; h++) {
            i64 tile = (block * job->kv_heads + h) * BLOCK * size;
            turned(job, row + (job->heads + h) * size, job->k_norm, token, (bf16 *)pairs);
            uint32_t *key = (uint32_t *)(job->keys + tile) + place;
            for (i64 i = 0; i < size / 2; i++) key[i * BLOCK] = pairs[i];
            const bf16 *from = row + (job->heads + job->kv_heads + h) * size;
            bf16 *value = job->values + tile + place / 2 * 2 * size + place % 2;
            for (i64 i = 0; i < size; i++) value[i * 2] = from[i];
        }
    }
}

void slipway_rope(const Rope *job) { run(rope_part, (void *)job, (job->tokens + ROW_CHUNK - 1) / ROW_CHUNK); }

// --- attention -------------------------------------------------------------------------------------------------------
// Flash attention over paged keys and values: a tile holds the heads of one group for some query tokens of a sequence.

typedef struct {
    const bf16 *q;            // [tokens, heads, size]
    const bf16 *keys, *values;
    bf16 *y;                  // [tokens, heads, size]
    const int32_t *tables;    // [spans, table_width]: blocks of each sequence
    const int32_t *first;     // [spans]: row of the first query token
    const int32_t *counts;    // [spans]: query tokens
    const int32_t *starts;    // [spans]: position of the first query token
    i64 spans, table_width, heads, kv_heads, size;
    i64 window;               // 0: all
    float scale, cap;         // 0: no cap
} Attend;

// S[r, 32] of `rows` rows against one block of keys. `ahead` is what will be read next: blocks lie anywhere in memory, and
// the processor's own prefetching does not follow.
ALWAYS void scores(const uint32_t *q, const bf16 *keys, const bf16 *ahead, float *s, i64 pairs, const int rows) {
    __m512 a[6], b[6];
    UNROLLED
    for (int r = 0; r < rows; r++) a[r] = b[r] = _mm512_setzero_ps();
    for (i64 p = 0; p < pairs; p++) {
        _mm_prefetch((const char *)(ahead + p * 64), _MM_HINT_T0);
        _mm_prefetch((const char *)(ahead + p * 64 + 32), _MM_HINT_T0);
        __m512bh k0 = (__m512bh)_mm512_loadu_si512(keys + p * 64), k1 = (__m512bh)_mm512_loadu_si512(keys + p * 64 + 32);
        UNROLLED
        for (int r = 0; r < rows; r++) {
            __m512bh pair = (__m512bh)_mm512_set1_epi32((int)q[r * pairs + p]);
            a[r] = _mm512_dpbf16_ps(a[r], pair, k0);
            b[r] = _mm512_dpbf16_ps(b[r], pair, k1);
        }
    }
    UNROLLED
    for (int r = 0; r < rows; r++) {
        _mm512_storeu_ps(s + r * BLOCK, a[r]);
        _mm512_storeu_ps(s + r * BLOCK + LANES, b[r]);
    }
}

// acc[r, size] = acc[r, size] * factor[r] + P[r, 32] V[32, size], 32 columns at a time.
ALWAYS void weigh(
    const uint32_t *p, const bf16 *values, const bf16 *ahead, float *acc, const float *factor, i64 size, const int rows
) {
    for (i64 column = 0; column < size; column += 32) {
        __m512 a[6], b[6];
        UNROLLED
        for (int r = 0; r < rows; r++) {
            a[r] = _mm512_mul_ps(_mm512_loadu_ps(acc + r * size + column), _mm512_set1_ps(factor[r]));
            b[r] = _mm512_mul_ps(_mm512_loadu_ps(acc + r * size + column + LANES), _mm512_set1_ps(factor[r]));
        }
        for (int t = 0; t < BLOCK / 2; t++) {
            const bf16 *at = values + (t * size + column) * 2;
            _mm_prefetch((const char *)(ahead + (t * size + column) * 2), _MM_HINT_T0);
            _mm_prefetch((const char *)(ahead + (t * size + column) * 2 + 32), _MM_HINT_T0);
            __m512bh v0 = (__m512bh)_mm512_loadu_si512(at), v1 = (__m512bh)_mm512_loadu_si512(at + 32);
            UNROLLED
            for (int r = 0; r < rows; r++) {
                __m512bh pair = (__m512bh)_mm512_set1_epi32((int)p[r * (BLOCK / 2) + t]);
                a[r] = _mm512_dpbf16_ps(a[r], pair, v0);
                b[r] = _mm512_dpbf16_ps(b[r], pair, v1);
            }
        }
        UNROLLED
        for (int r = 0; r < rows; r++) {
            _mm512_storeu_ps(acc + r * size + column, a[r]);
            _mm512_storeu_ps(acc + r * size + column + LANES, b[r]);
        }
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

static void weigh_all(
    const uint32_t *p, const bf16 *values, const bf16 *ahead, float *acc, const float *factor, i64 size, int rows
) {
    for (; rows >= 6; rows -= 6, p += 3 * BLOCK, acc += 6 * size, factor += 6)
        weigh(p, values, ahead, acc, factor, size, 6);
    switch (rows) {
    case 5: weigh(p, values, ahead, acc, factor, size, 5); break;
    case 4: weigh(p, values, ahead, acc, factor, size, 4); break;
    case 3: weigh(p, values, ahead, acc, factor, size, 3); break;
    case 2: weigh(p, values, ahead, acc, factor, size, 2); break;
    case 1: weigh(p, values, ahead, acc, factor, size, 1); break;
    }
}

// One row of scores to weights: masked, with the running maximum and sum. `seen` keys of the block are visible from `from`.
ALWAYS void soften(const Attend *job, float *s, uint32_t *p, i64 from, i64 seen, float *most, float *sum, float *factor) {
    uint32_t visible = seen >= BLOCK ? ~0u : seen <= 0 ? 0u : (1u << seen) - 1;
    if (from > 0) visible &= from >= BLOCK ? 0u : ~0u << from;
    __mmask16 low = (__mmask16)visible, high = (__mmask16)(visible >> LANES);
    __m512 a = _mm512_mul_ps(_mm512_loadu_ps(s), _mm512_set1_ps(job->scale));
    __m512 b = _mm512_mul_ps(_mm512_loadu_ps(s + LANES), _mm512_set1_ps(job->scale));
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
    *factor = *most == -INFINITY ? 0.0f : expf(*most - base);
    a = _mm512_maskz_mov_ps(low, exp512(_mm512_sub_ps(a, _mm512_set1_ps(base))));
    b = _mm512_maskz_mov_ps(high, exp512(_mm512_sub_ps(b, _mm512_set1_ps(base))));
    *sum = *sum * *factor + _mm512_reduce_add_ps(_mm512_add_ps(a, b));
    *most = top;
    store_bf16((bf16 *)p, a);
    store_bf16((bf16 *)p + LANES, b);
}

// Where the keys, and the values, of a head's block lie in their caches.
ALWAYS i64 tile_at(const Attend *job, i64 span, i64 head, i64 block) {
    return (job->tables[span * job->table_width + block] * job->kv_heads + head) * BLOCK * job->size;
}

static void attend_tile(const Attend *job, i64 span, i64 head, i64 tile) {
    const i64 size = job->size, group = job->heads / job->kv_heads, per_tile = TILE / group;
    const i64 begin = tile * per_tile, left = job->counts[span] - begin, queries = left < per_tile ? left : per_tile;
    const int rows = (int)(queries * group);
    bf16 q[TILE * MAX_HEAD];
    float acc[TILE * MAX_HEAD], s[TILE * BLOCK], most[TILE], sum[TILE], factor[TILE];
    uint32_t p[TILE * BLOCK / 2];
    for (i64 i = 0; i < queries; i++) {
        i64 row = job->first[span] + begin + i;
        memcpy(q + i * group * size, job->q + (row * job->heads + head * group) * size, (size_t)(group * size) * sizeof(bf16));
    }
    memset(acc, 0, sizeof(float) * (size_t)(rows * size));
    for (int r = 0; r < rows; r++) most[r] = -INFINITY, sum[r] = 0;
    const i64 position = job->starts[span] + begin, last = position + queries - 1;
    const i64 oldest = job->window > 0 && position - job->window + 1 > 0 ? position - job->window + 1 : 0;
    for (i64 block = oldest / BLOCK; block <= last / BLOCK; block++) {
        const i64 at = tile_at(job, span, head, block), next = tile_at(job, span, head, block < last / BLOCK ? block + 1 : block);
        all_scores((const uint32_t *)q, job->keys + at, job->keys + next, s, size / 2, rows);
        for (int r = 0; r < rows; r++) {
            i64 now = position + r / group, from = job->window > 0 ? now - job->window + 1 - block * BLOCK : 0;
            soften(job, s + r * BLOCK, p + r * BLOCK / 2, from, now + 1 - block * BLOCK, most + r, sum + r, factor + r);
        }
        weigh_all(p, job->values + at, job->values + next, acc, factor, size, rows);
    }
    for (i64 i = 0; i < queries; i++) {
        bf16 *y = job->y + ((job->first[span] + begin + i) * job->heads + head * group) * size;
        for (i64 g = 0; g < group; g++) {
            __m512 inverse = _mm512_set1_ps(1.0f / sum[i * group + g]);
            for (i64 c = 0; c < size; c += LANES)
                store_bf16(y + g * size + c, _mm512_mul_ps(_mm512_loadu_ps(acc + (i * group + g) * size + c), inverse));
        }
    }
}

static i64 queries_per_tile(const Attend *job) { return TILE / (job->heads / job->kv_heads); }

static i64 tiles_of(const Attend *job, i64 span) {
    i64 each = queries_per_tile(job);
    return (job->counts[span] + each - 1) / each;
}

// Later tiles of a prompt see more keys: they are handed out first, so that no thread ends alone with a long one.
static void attend_part(void *given, i64 part) {
    const Attend *job = given;
    i64 span = job->spans - 1, left = part / job->kv_heads;
    while (left >= tiles_of(job, span)) left -= tiles_of(job, span--);
    attend_tile(job, span, part % job->kv_heads, tiles_of(job, span) - 1 - left);
}

void slipway_attend(const Attend *job) {
    i64 tiles = 0;
    for (i64 span = 0; span < job->spans; span++) tiles += tiles_of(job, span);
    run(attend_part, (void *)job, tiles * job->kv_heads);
}
