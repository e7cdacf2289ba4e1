// The kernels against plain sums in double, for machines that run no torch here: under an emulator of their CPU.
// Includes the source, so that it is one program. Exit status 0: all is near, and the same bits in any batch.

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../../server/slipway_server/kernels/c/native.c"

static uint32_t state = 1;
static int failed;

static float draw(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state / 2147483648.0f;
}

static float widened(bf16 x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static bf16 narrowed(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static bf16 *some(i64 count) {
    bf16 *x = malloc((size_t)count * sizeof(bf16));
    for (i64 i = 0; i < count; i++) x[i] = narrowed(draw());
    return x;
}

// The distance of y from what is exact, as a share of it.
static void near(const char *what, const bf16 *y, const double *exact, i64 count, double limit) {
    double off = 0, all = 1e-30;
    for (i64 i = 0; i < count; i++) {
        const double miss = widened(y[i]) - exact[i];
        off += miss * miss, all += exact[i] * exact[i];
    }
    const double found = sqrt(off / all);
    const int bad = !(found <= limit);
    printf("%-40s %.5f%s\n", what, found, bad ? "  TOO FAR" : "");
    failed += bad;
}

static void same(const char *what, const void *a, const void *b, size_t size) {
    const int bad = memcmp(a, b, size) != 0;
    printf("%-40s %s\n", what, bad ? "OTHER BITS" : "same bits");
    failed += bad;
}

static void check_linear(i64 m, i64 k, int is_int8) {
    const i64 n = 3 * PANEL;
    bf16 *x = some(m * k), *w = some(n * k), *y = calloc((size_t)(m * n), 2), *alone = calloc((size_t)(m * n), 2);
    double *exact = calloc((size_t)(m * n), sizeof(double));
    void *packed_w = aligned_alloc(64, (size_t)(n * k * 2 + AHEAD));
    float *scale = malloc((size_t)n * 4);
    int32_t *sum = malloc((size_t)n * 4);
    Pack pack = {w, packed_w, scale, sum, n, k, is_int8};
    slipway_pack(&pack);
    Linear job = {.x = x, .w = packed_w, .w_scale = scale, .w_sum = sum, .y = y, .m = m, .k = k, .n = n, .is_int8 = is_int8};
    slipway_linear(&job);
    for (i64 r = 0; r < m; r++)
        for (i64 c = 0; c < n; c++)
            for (i64 i = 0; i < k; i++) exact[r * n + c] += (double)widened(x[r * k + i]) * widened(w[c * k + i]);
    char what[80];
    snprintf(what, sizeof what, "%s m=%d k=%d", is_int8 ? "int8" : "bf16", (int)m, (int)k);
    near(what, y, exact, m * n, is_int8 ? 0.02 : 0.004);
    for (i64 r = 0; r < m; r++) {
        job.x = x + r * k, job.y = alone + r * n, job.m = 1;
        slipway_linear(&job);
    }
    same("  row by row", y, alone, (size_t)(m * n) * 2);
    free(x), free(w), free(y), free(alone), free(exact), free(packed_w), free(scale), free(sum);
}

// Weights of 4 bits, packed as int4.h says it.
static void check_int4(i64 m, i64 k, i64 group) {
    const i64 n = 3 * PANEL, groups = k / group;
    bf16 *x = some(m * k), *y = calloc((size_t)(m * n), 2), *alone = calloc((size_t)(m * n), 2);
    double *exact = calloc((size_t)(m * n), sizeof(double));
    uint8_t *w = aligned_alloc(64, (size_t)(n * k / 2 + 4096)), *zero = malloc((size_t)(n * groups));
    float *scale = malloc((size_t)(n * groups) * 4);
    memset(w, 0, (size_t)(n * k / 2));
    for (i64 i = 0; i < n * groups; i++) scale[i] = 0.01f + 0.005f * draw(), zero[i] = (uint8_t)(7.5f + 7.4f * draw());
    for (i64 c = 0; c < n; c++)
        for (i64 i = 0; i < k; i++) {
            const uint8_t q = (uint8_t)(7.5f + 7.4f * draw());
            const i64 panel = c / PANEL, column = c % PANEL, about = (panel * groups + i / group) * PANEL + column;
            w[((panel * (k / 8) + i / 8) * PANEL + column) * 4 + i % 4] |= (uint8_t)(q << (i % 8 / 4 * 4));
            const double number = ((double)q - zero[about]) * scale[about];
            for (i64 r = 0; r < m; r++) exact[r * n + c] += widened(x[r * k + i]) * number;
        }
    Linear job = {.x = x, .w = w, .w_scale = scale, .w_zero = zero, .y = y, .m = m, .k = k, .n = n, .group = group};
    slipway_linear(&job);
    char what[80];
    snprintf(what, sizeof what, "int4 m=%d k=%d group=%d", (int)m, (int)k, (int)group);
    near(what, y, exact, m * n, 0.02);
    for (i64 r = 0; r < m; r++) {
        job.x = x + r * k, job.y = alone + r * n, job.m = 1;
        slipway_linear(&job);
    }
    same("  row by row", y, alone, (size_t)(m * n) * 2);
    free(x), free(y), free(alone), free(exact), free(w), free(zero), free(scale);
}

static void check_norm(void) {
    enum { M = 11, K = 96 };
    bf16 *x = some(M * K), y[M * K];
    float weight[K];
    double exact[M * K];
    for (int i = 0; i < K; i++) weight[i] = 1.0f + 0.5f * draw();
    Norm job = {x, weight, y, M, K, 1e-6f};
    slipway_norm(&job);
    for (int r = 0; r < M; r++) {
        double sum = 0;
        for (int i = 0; i < K; i++) sum += (double)widened(x[r * K + i]) * widened(x[r * K + i]);
        for (int i = 0; i < K; i++) exact[r * K + i] = widened(x[r * K + i]) / sqrt(sum / K + 1e-6) * weight[i];
    }
    near("norm", y, exact, M * K, 0.004);
    free(x);
}

// A prompt of one sequence, written to the cache and attended to at once; then its last token alone.
static void check_attention(i64 tokens, int is_int8) {
    enum { HEADS = 6, KV = 2, SIZE = 64, WIDTH = (HEADS + 2 * KV) * SIZE };
    const i64 blocks = (tokens + BLOCK - 1) / BLOCK, numbers = blocks * KV * BLOCK * SIZE;
    bf16 *qkv = some(tokens * WIDTH), *q = calloc((size_t)(tokens * HEADS * SIZE), 2), *y = calloc((size_t)(tokens * HEADS * SIZE), 2);
    int32_t *positions = malloc((size_t)tokens * 4), *slots = malloc((size_t)tokens * 4), *table = malloc((size_t)blocks * 4);
    void *keys = aligned_alloc(64, (size_t)numbers * 2), *values = aligned_alloc(64, (size_t)numbers * 2);
    float *scales = calloc((size_t)(2 * blocks * KV * BLOCK), 4);
    memset(keys, 0, (size_t)numbers * 2), memset(values, 0, (size_t)numbers * 2);
    for (i64 b = 0; b < blocks; b++) table[b] = (int32_t)(blocks - 1 - b);
    for (i64 t = 0; t < tokens; t++) positions[t] = (int32_t)t, slots[t] = table[t / BLOCK] * BLOCK + (int32_t)(t % BLOCK);
    float *key_scales = is_int8 ? scales : NULL, *value_scales = is_int8 ? scales + blocks * KV * BLOCK : NULL;
    Rope rope = {
        .qkv = qkv, .positions = positions, .slot_mapping = slots, .q = q, .keys = keys, .values = values,
        .key_scales = key_scales, .value_scales = value_scales, .tokens = tokens, .heads = HEADS, .kv_heads = KV, .size = SIZE,
    };
    slipway_rope(&rope);
    int32_t first = 0, count = (int32_t)tokens, start = 0;
    Attend job = {
        .q = q, .keys = keys, .values = values, .key_scales = key_scales, .value_scales = value_scales, .y = y,
        .block_tables = table, .first = &first, .counts = &count, .starts = &start, .spans = 1, .table_width = blocks,
        .heads = HEADS, .kv_heads = KV, .size = SIZE, .scale = 0.5f,
    };
    slipway_attend(&job);
    double *exact = calloc((size_t)(tokens * HEADS * SIZE), sizeof(double)), *p = malloc((size_t)tokens * sizeof(double));
    for (i64 t = 0; t < tokens; t++)
        for (i64 h = 0; h < HEADS; h++) {
            const i64 kv = HEADS + h / (HEADS / KV);
            double all = 0;
            for (i64 s = 0; s <= t; s++) {
                double score = 0;
                for (i64 i = 0; i < SIZE; i++)
                    score += (double)widened(qkv[t * WIDTH + h * SIZE + i]) * widened(qkv[s * WIDTH + kv * SIZE + i]);
                all += p[s] = exp(score * 0.5);
            }
            for (i64 s = 0; s <= t; s++)
                for (i64 i = 0; i < SIZE; i++)
                    exact[(t * HEADS + h) * SIZE + i] += p[s] / all * widened(qkv[s * WIDTH + (kv + KV) * SIZE + i]);
        }
    char what[80];
    snprintf(what, sizeof what, "attention %s, %d tokens", is_int8 ? "int8" : "bf16", (int)tokens);
    near(what, y, exact, tokens * HEADS * SIZE, is_int8 ? 0.03 : 0.006);
    bf16 last[HEADS * SIZE];
    count = 1, start = (int32_t)tokens - 1;
    job.q = q + (tokens - 1) * HEADS * SIZE, job.y = last;
    slipway_attend(&job);
    same("  the last token alone", last, y + (tokens - 1) * HEADS * SIZE, sizeof last);
    free(qkv), free(q), free(y), free(positions), free(slots), free(table), free(keys), free(values), free(scales), free(exact), free(p);
}

int main(void) {
#ifdef TILE_PRODUCTS
    if (syscall(SYS_arch_prctl, 0x1023, 18)) return 2; // the kernel gives no tiles
#endif
    slipway_start(2);
    printf("%d lanes, panels of %d\n", LANES, PANEL);
    for (i64 m = 1; m < 11; m++) check_int4(m, 256, 64);
    check_int4(1, 4096, 256), check_int4(70, 96, 32), check_int4(130, 384, 128);
    for (int is_int8 = 0; is_int8 < 2; is_int8++) {
        const i64 rows[] = {1, 2, 5, 6, 7, 13, 40, 130};
        for (int i = 0; i < 8; i++) check_linear(rows[i], 272, is_int8);
        check_linear(3, 16, is_int8), check_linear(20, 4400, is_int8);
        const i64 tokens[] = {1, 31, 33, 70, 600};
        for (int i = 0; i < 5; i++) check_attention(tokens[i], is_int8);
    }
    check_norm();
    return failed != 0;
}
