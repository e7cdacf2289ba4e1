// Low-rank updates of linear layers (LoRA, arXiv 2106.09685): each row of a step may have its own adapter.
//
// y = (x . w + scale * (x . a) . b) * magnitude + bias. The first product (shrink) is a job of its own, beside the packing
// of the input. The second one (expand) is added where the sums of the layer end, before anything is rounded. A row
// without an adapter is computed as without this file.

#define MOST_PARTS 3        // of a layer: q, k and v; gate and up
#define HALF (PANEL / 2)    // columns of b that lie together: where a layer is gated, half a panel is of each part
#define SHRINK_RANKS 8      // rows of a that are multiplied together, as many as there are registers for

// What an adapter adds to one part of a layer.
typedef struct {
    const bf16 *a; // [rank, k] in groups of 8, then 4, 2 and 1 rows: each [k / HALF, rows of the group, HALF]
    const bf16 *b; // [columns of the part / HALF, rank, HALF]
    i64 rank;      // 0: nothing
    float scale;
    int reserved;
} LowRank;

typedef struct {
    LowRank parts[MOST_PARTS];
    const float *magnitude; // DoRA (arXiv 2402.09353): [n] in the order of the panels, or NULL
} Adapter;

// What a layer has of all adapters, and which one each row has.
typedef struct {
    const Adapter *table; // [adapters]
    const int32_t *slots; // [m]: of the table, or -1; NULL where no row has one
    i64 ends[MOST_PARTS]; // of each part, in columns; not used where the layer is gated
    i64 parts, most_rank;
} Adapters;

static struct {
    float *numbers; // [m, parts, most_rank]
    i64 size;
} shrunk;

static int reserve_shrunk(i64 size) {
    if (shrunk.size < size) {
        free(shrunk.numbers);
        shrunk.numbers = malloc((size_t)size * sizeof(float));
        shrunk.size = shrunk.numbers ? size : 0;
    }
    return shrunk.numbers != NULL;
}

ALWAYS float *shrunk_of(const Adapters *adapters, i64 row, i64 part) {
    return shrunk.numbers + (row * adapters->parts + part) * adapters->most_rank;
}

// --- shrink ------------------------------------------------------------------------------------------------------------

// `ranks` is a constant where this is inlined. Each number is one sum over k in order, whatever is computed beside it.
ALWAYS void shrink_group(const bf16 *x, const bf16 *a, i64 k, float scale, float *to, const int ranks) {
    vf sums[SHRINK_RANKS];
    UNROLLED
    for (int r = 0; r < ranks; r++) sums[r] = splat(0.0f);
    for (i64 i = 0; i < k; i += HALF, a += ranks * HALF) {
        prefetch(a + 16 * HALF * SHRINK_RANKS);
        for (int v = 0; v < HALF; v += LANES) {
            const vf some = load_bf16(x + i + v);
            UNROLLED
            for (int r = 0; r < ranks; r++) sums[r] = fma_of(some, load_bf16(a + r * HALF + v), sums[r]);
        }
    }
    UNROLLED
    for (int r = 0; r < ranks; r++) to[r] = sum_of(sums[r]) * scale;
}

static void shrink(const bf16 *x, const LowRank *part, i64 k, i64 from, i64 end, float *to) {
    while (from < end) {
        const i64 left = part->rank - from;
        const bf16 *a = part->a + from * k;
        if (left >= 8) shrink_group(x, a, k, part->scale, to + from, 8), from += 8;
        else if (left >= 4) shrink_group(x, a, k, part->scale, to + from, 4), from += 4;
        else if (left >= 2) shrink_group(x, a, k, part->scale, to + from, 2), from += 2;
        else shrink_group(x, a, k, part->scale, to + from, 1), from += 1;
    }
}

// A job's parts: some rows, by 8 ranks of one part of the layer. Rows of one prompt, which have one adapter, read it from
// the cache.
#define SHRINK_ROWS 8
#define FEW_ROWS 16

typedef struct {
    i64 rows, chunks, groups; // rows of a chunk; groups of ranks of a part
} ShrinkPlan;

static ShrinkPlan shrink_plan(const Adapters *adapters, i64 m) {
    const i64 rows = m <= FEW_ROWS ? 1 : SHRINK_ROWS;
    return (ShrinkPlan){rows, (m + rows - 1) / rows, (adapters->most_rank + SHRINK_RANKS - 1) / SHRINK_RANKS};
}

static i64 shrink_parts(const Adapters *adapters, i64 m) {
    if (!adapters->slots) return 0;
    const ShrinkPlan plan = shrink_plan(adapters, m);
    return plan.chunks * plan.groups * adapters->parts;
}

static void shrink_part(const Adapters *adapters, const bf16 *x, i64 m, i64 k, i64 number) {
    const ShrinkPlan plan = shrink_plan(adapters, m);
    const i64 group = number % plan.groups, part = number / plan.groups % adapters->parts;
    const i64 first = number / plan.groups / adapters->parts * plan.rows, last = first + plan.rows < m ? first + plan.rows : m;
    for (i64 row = first; row < last; row++) {
        if (adapters->slots[row] < 0) continue;
        const LowRank *update = adapters->table[adapters->slots[row]].parts + part;
        const i64 from = group * SHRINK_RANKS, end = from + SHRINK_RANKS < update->rank ? from + SHRINK_RANKS : update->rank;
        shrink(x + row * k, update, k, from, end, shrunk_of(adapters, row, part));
    }
}

// --- expand ------------------------------------------------------------------------------------------------------------

static i64 part_of(const Adapters *adapters, i64 column) {
    i64 part = 0;
    while (column >= adapters->ends[part]) part++;
    return part;
}

// The half of a panel: its part of the layer, and which half of that part's columns it is.
ALWAYS const LowRank *half_of(const Adapters *adapters, i64 slot, i64 column, int half, int gated, i64 *part, i64 *unit) {
    *part = gated ? half : part_of(adapters, column);
    const i64 first = gated || *part == 0 ? 0 : adapters->ends[*part - 1];
    *unit = gated ? column / PANEL : (column - first) / HALF + half;
    return adapters->table[slot].parts + *part;
}

// Adds what the row's adapter has for the columns of a panel.
static __attribute__((noinline)) void expand(const Adapters *adapters, i64 row, i64 column, int gated, vf sums[COLUMNS]) {
    const i64 slot = adapters->slots[row];
    for (int half = 0; half < 2; half++) {
        i64 part, unit;
        const LowRank *update = half_of(adapters, slot, column, half, gated, &part, &unit);
        const float *from = shrunk_of(adapters, row, part);
        const bf16 *b = update->b + unit * update->rank * HALF;
        vf added[COLUMNS / 2];
        UNROLLED
        for (int c = 0; c < COLUMNS / 2; c++) added[c] = splat(0.0f);
        for (i64 r = 0; r < update->rank; r++, b += HALF)
            UNROLLED
            for (int c = 0; c < COLUMNS / 2; c++) added[c] = fma_of(splat(from[r]), load_bf16(b + c * LANES), added[c]);
        UNROLLED
        for (int c = 0; c < COLUMNS / 2; c++) sums[half * COLUMNS / 2 + c] = sums[half * COLUMNS / 2 + c] + added[c];
    }
    const float *magnitude = adapters->table[slot].magnitude;
    UNROLLED
    for (int c = 0; magnitude && c < COLUMNS; c++) sums[c] = sums[c] * load(magnitude + column + c * LANES);
}

// Where few rows wait for memory: what `expand` will read of a panel, for all rows.
static void fetch_expansion(const Adapters *adapters, i64 m, i64 column, int gated) {
    for (i64 row = 0; row < m; row++) {
        if (adapters->slots[row] < 0) continue;
        for (int half = 0; half < 2; half++) {
            i64 part, unit;
            const LowRank *update = half_of(adapters, adapters->slots[row], column, half, gated, &part, &unit);
            const char *b = (const char *)(update->b + unit * update->rank * HALF);
            for (i64 at = 0; at < update->rank * HALF * 2; at += 64) prefetch_far(b + at);
        }
    }
}
