// Flash attention over paged keys and values: a tile holds the heads of one group for some query tokens of a sequence.
//
// What a tile sees is divided into splits, at fixed positions: each has sums of its own, which are then added in order.
// So one thread gets the same bits as several that share the splits of a long context.

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

#define SPLIT 16 // blocks

// What a head's tokens of a block are scaled by, in int8; NULL in bf16.
typedef struct {
    const float *keys, *values;
} Scales;

ALWAYS Scales scales_of(const Attend *job, i64 token) {
    if (!job->key_scales) return (Scales){NULL, NULL};
    return (Scales){job->key_scales + token, job->value_scales + token};
}

ALWAYS void put_weights(uint32_t *p, vf weights, int vector) {
    if (PAIR_WORDS == 2) store((float *)p + vector * LANES, weights);
    else store_bf16((bf16 *)p + vector * LANES, weights);
}

// One row of scores to weights: masked, with the running maximum and sum. Keys [from, seen) of the block are visible.
ALWAYS void soften(
    const Attend *job, Scales scales, float *s, uint32_t *p, i64 from, i64 seen, float *most, float *sum, float *factor
) {
    const vf none = splat(-INFINITY), nothing = splat(0.0f);
    vf x[TOKEN_VECTORS], peak = none, total = nothing;
    UNROLLED
    for (int v = 0; v < TOKEN_VECTORS; v++) {
        x[v] = load(s + v * LANES) * splat(job->scale);
        if (scales.keys) x[v] = x[v] * load(scales.keys + v * LANES);
        // cap*tanh(x/cap) = cap*(2*sigmoid(2x/cap) - 1)
        if (job->cap > 0) x[v] = fma_of(splat(2 * job->cap), sigmoid(x[v] * splat(2.0f / job->cap)), splat(-job->cap));
        x[v] = within(from - v * LANES, seen - v * LANES, x[v], none);
        peak = larger(peak, x[v]);
    }
    float top = largest_of(peak);
    top = top > *most ? top : *most;
    float base = top == -INFINITY ? 0.0f : top;
    *factor = top == *most ? 1.0f : *most == -INFINITY ? 0.0f : expf(*most - base);
    UNROLLED
    for (int v = 0; v < TOKEN_VECTORS; v++) {
        x[v] = within(from - v * LANES, seen - v * LANES, exp_of(x[v] - splat(base)), nothing);
        total = total + x[v];
        // Scales of tokens that are not seen may be anything.
        if (scales.values) x[v] = within(from - v * LANES, seen - v * LANES, x[v] * load(scales.values + v * LANES), nothing);
        put_weights(p, x[v], v);
    }
    *sum = *sum * *factor + sum_of(total);
    *most = top;
}

// Where the keys, and the values, of a head's block lie in their caches.
ALWAYS i64 tile_at(const Attend *job, i64 span, i64 head, i64 block) {
    return (job->block_tables[span * job->table_width + block] * job->kv_heads + head) * BLOCK * job->size;
}

// int8 to bf16. What is read next is fetched meanwhile.
static void widen(const int8_t *from, const int8_t *ahead, bf16 *to, i64 count) {
    for (i64 i = 0; i < count; i += 32) {
        prefetch_far(ahead + i);
        for (i64 lane = i; lane < i + 32; lane += LANES) widen_whole(from + lane, to + lane);
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
typedef struct {
    i64 span, head, heads, tile;
    i64 group, rows;           // heads of a group; rows of a head
    i64 position, queries;     // of the first query token, and how many there are
    i64 oldest, last;          // blocks that are seen
} Place;

static Place place_at(const Attend *job, i64 span, i64 head, i64 heads, i64 tile) {
    const i64 group = job->heads / job->kv_heads, queries = queries_of(job, span, tile);
    const i64 position = job->starts[span] + tile * queries_per_tile(job), beyond = position - job->window + 1;
    const i64 oldest = job->window > 0 && beyond > 0 ? beyond : 0;
    return (Place){
        span, head, heads, tile, group, queries * group, position, queries, oldest / BLOCK, (position + queries - 1) / BLOCK
    };
}

// Sums of some rows over what was seen so far.
typedef struct {
    float *acc, *most, *sum; // [rows, size], [rows], [rows]
} Sums;

ALWAYS i64 first_query(const Attend *job, const Place *at) {
    return ((job->first[at->span] + at->tile * queries_per_tile(job)) * job->heads + at->head * at->group) * job->size;
}

static void take_queries(const Attend *job, const Place *at, uint32_t *q) {
    const bf16 *from = job->q + first_query(job, at);
    const i64 count = at->group * job->size;
    for (i64 h = 0; h < at->heads; h++)
        for (i64 i = 0; i < at->queries; i++) {
            const bf16 *x = from + (i * job->heads + h * at->group) * job->size;
            uint32_t *to = q + (h * at->rows + i * at->group) * job->size / 2 * PAIR_WORDS;
            if (PAIR_WORDS == 1) memcpy(to, x, (size_t)count * sizeof(bf16));
            else
                for (i64 n = 0; n < count; n += LANES) store((float *)to + n, load_bf16(x + n));
        }
}

// The blocks of one split into fresh sums.
static void attend_split(const Attend *job, const Place *at, const uint32_t *q, i64 split, Sums sums) {
    const i64 size = job->size, width = BLOCK * size, rows = at->rows, heads = at->heads, group = at->group;
    float s[TILE * BLOCK], factor[TILE];
    uint32_t p[TILE * P_ROW];
    bf16 wide[BLOCK * MAX_HEAD];
    memset(sums.acc, 0, sizeof(float) * (size_t)(heads * rows * size));
    for (i64 r = 0; r < heads * rows; r++) sums.most[r] = -INFINITY, sums.sum[r] = 0;
    const i64 from = split * SPLIT > at->oldest ? split * SPLIT : at->oldest;
    const i64 last = (split + 1) * SPLIT - 1 < at->last ? (split + 1) * SPLIT - 1 : at->last;
    for (i64 block = from; block <= last; block++) {
        const i64 tile = tile_at(job, at->span, at->head, block);
        const i64 next = tile_at(job, at->span, at->head, block < at->last ? block + 1 : block);
        for (i64 h = 0; h < heads; h++) {
            const i64 here = tile + h * width;
            const Scales scales = scales_of(job, here / size);
            const void *ahead = h + 1 < heads ? place_of(job, job->keys, here + width) : place_of(job, job->values, tile);
            const bf16 *keys = numbers_of(job, place_of(job, job->keys, here), &ahead, wide);
            all_scores(q + h * rows * size / 2 * PAIR_WORDS, keys, ahead, s, size / 2, (int)rows);
            for (i64 r = 0, each = h * rows; r < rows; r++, each++) {
                i64 now = at->position + r / group, since = job->window > 0 ? now - job->window + 1 - block * BLOCK : 0;
                i64 seen = now + 1 - block * BLOCK;
                soften(job, scales, s + r * BLOCK, p + each * P_ROW, since, seen, sums.most + each, sums.sum + each, factor + each);
            }
        }
        for (i64 h = 0; h < heads; h++) {
            const i64 each = h * rows, here = tile + h * width;
            const void *ahead = h + 1 < heads ? place_of(job, job->values, here + width) : place_of(job, job->keys, next);
            const bf16 *values = numbers_of(job, place_of(job, job->values, here), &ahead, wide);
            weigh_all(p + each * P_ROW, values, ahead, sums.acc + each * size, factor + each, size, (int)rows);
        }
    }
}

// Adds the sums of a later split. Those of a row that saw nothing in one of both weigh nothing.
static void add_split(const Attend *job, i64 rows, Sums total, Sums later) {
    for (i64 r = 0; r < rows; r++) {
        const float a = total.most[r], b = later.most[r], top = a > b ? a : b;
        const float of_total = a == top ? 1.0f : a == -INFINITY ? 0.0f : expf(a - top);
        const float of_later = b == top ? 1.0f : b == -INFINITY ? 0.0f : expf(b - top);
        for (i64 c = r * job->size; c < (r + 1) * job->size; c += LANES)
            store(total.acc + c, load(total.acc + c) * splat(of_total) + load(later.acc + c) * splat(of_later));
        total.sum[r] = total.sum[r] * of_total + later.sum[r] * of_later;
        total.most[r] = top;
    }
}

static void put_attended(const Attend *job, const Place *at, Sums total) {
    const i64 size = job->size;
    bf16 *to = job->y + first_query(job, at);
    for (i64 h = 0; h < at->heads; h++)
        for (i64 r = 0; r < at->rows; r++) {
            bf16 *y = to + (r / at->group * job->heads + h * at->group + r % at->group) * size;
            const i64 row = h * at->rows + r;
            const vf inverse = splat(1.0f / total.sum[row]);
            for (i64 c = 0; c < size; c += LANES) store_bf16(y + c, load(total.acc + row * size + c) * inverse);
        }
}

static void attend_tile(const Attend *job, const Place *at) {
    uint32_t q[TILE * MAX_HEAD / 2 * PAIR_WORDS];
    float acc[TILE * MAX_HEAD], later_acc[TILE * MAX_HEAD], most[TILE], later_most[TILE], sum[TILE], later_sum[TILE];
    const Sums total = {acc, most, sum}, later = {later_acc, later_most, later_sum};
    take_queries(job, at, q);
    const i64 first = at->oldest / SPLIT;
    for (i64 split = first; split <= at->last / SPLIT; split++) {
        attend_split(job, at, q, split, split == first ? total : later);
        if (split > first) add_split(job, at->heads * at->rows, total, later);
    }
    put_attended(job, at, total);
    end_of_tiles();
}
