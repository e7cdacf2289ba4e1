// Weights as the micro kernels read them.

typedef struct {
    const bf16 *x;  // [n, k]
    void *w;        // as in Linear
    float *w_scale; // int8: [n], out
    int32_t *w_sum; // int8: [n], out
    i64 n, k;
    int is_int8;
} Pack;

int slipway_panel(void) { return PANEL; }

// Whether there is something that is no number, and the largest magnitude of the others.
ALWAYS float largest_number(const bf16 *x, i64 k, int *no_number) {
    vf most = splat(0.0f);
    vi none = {0};
    for (i64 i = 0; i < k; i += LANES) {
        vf v = load_bf16(x + i);
        most = larger(magnitude(v), most);
        none |= v != v;
    }
    *no_number = whole_sum_of(none) != 0;
    return largest_of(most);
}

// One row to int8; gives the sum of what comes out. A row with something that is no number has no scale either: its
// outputs must not pass for numbers.
static int32_t quantize_weights(const bf16 *x, int8_t *q, i64 k, float *scale) {
    int no_number;
    const float top = largest_number(x, k, &no_number);
    *scale = no_number ? NAN : (top > 1e-12f ? top : 1e-12f) / 127.0f;
    vi sum = {0};
    for (i64 i = 0; i < k; i += LANES) {
        vi whole = rounded(load_bf16(x + i) / splat(*scale));
        store_bytes(q + i, whole);
        sum += whole;
    }
    return whole_sum_of(sum);
}

static void pack_weights_part(void *given, i64 panel) {
    const Pack *job = given;
    const i64 words = job->k / (job->is_int8 ? 4 : 2);
    const bf16 *x = job->x + panel * PANEL * job->k;
    uint32_t *to = (uint32_t *)job->w + panel * words * PANEL;
    int8_t q[job->is_int8 ? PANEL * job->k : 1];
    for (i64 r = 0; job->is_int8 && r < PANEL; r++) {
        const i64 row = panel * PANEL + r;
        job->w_sum[row] = OFFSET * quantize_weights(x + r * job->k, q + r * job->k, job->k, job->w_scale + row);
    }
    const char *from = job->is_int8 ? (const char *)q : (const char *)x;
    for (i64 p = 0; p < words; p++)
        for (i64 r = 0; r < PANEL; r++) memcpy(to + p * PANEL + r, from + (r * words + p) * 4, 4);
}

void slipway_pack(const Pack *job) { run(pack_weights_part, (void *)job, job->n / PANEL); }

// --- rows of a weight in panels ----------------------------------------------------------------------------------------

typedef struct {
    const uint32_t *w;    // packed as in Linear
    const float *w_scale; // int8: [n]
    const int64_t *ids;   // [m]
    bf16 *y;              // [m, k]
    i64 m, k;
    int is_int8;
} Rows;

// A part of a row, as long as a vector.
ALWAYS void int8_numbers(const uint32_t *from, float scale, bf16 *y) {
    float numbers[LANES];
    for (int p = 0; p < LANES / 4; p++) {
        const uint32_t word = from[p * PANEL];
        for (int i = 0; i < 4; i++) numbers[4 * p + i] = (int8_t)(word >> 8 * i);
    }
    store_bf16(y, load(numbers) * splat(scale));
}

static void rows_part(void *given, i64 row) {
    const Rows *job = given;
    const i64 numbers = job->is_int8 ? 4 : 2, words = job->k / numbers, id = job->ids[row];
    const i64 at_once = job->is_int8 ? LANES / 4 : 1; // words
    const uint32_t *from = job->w + id / PANEL * words * PANEL + id % PANEL;
    bf16 *y = job->y + row * job->k;
    for (i64 p = 0; p < words; p += at_once) {
        prefetch(from + (p + 16) * PANEL);
        if (job->is_int8)
            int8_numbers(from + p * PANEL, job->w_scale[id], y + p * numbers);
        else
            memcpy(y + p * numbers, from + p * PANEL, sizeof *from);
    }
}

void slipway_rows(const Rows *job) { run(rows_part, (void *)job, job->m); }
