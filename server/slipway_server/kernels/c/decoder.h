// A decoder's layers.
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
    const int32_t *slots, *row_slots;   // [tokens] and [num_rows], as in Adapters; NULL: no token has an adapter
    i64 *spent_ns;                      // [PARTS], added to
    i64 tokens, hidden, spans, table_width, num_rows;
} Step;

static i64 now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// `slots`: of the m rows, as in Adapters
static int multiply(
    const Step *step, const Linear *layer, const bf16 *x, bf16 *y, const bf16 *other, i64 m, const int32_t *slots
) {
    const i64 began = now_ns();
    Linear job = *layer;
    job.x = x, job.y = y, job.m = m;
    job.adapters.slots = slots;
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
static int add_to(
    const Step *step, bf16 *x, const bf16 *y, const Linear *layer, const Norm *after, i64 m, const int32_t *slots
) {
    if (!after->weight) return multiply(step, layer, y, x, x, m, slots);
    if (multiply(step, layer, y, step->addend, NULL, m, slots)) return -1;
    norm_rows(step, after, step->addend, step->addend, m);
    for (i64 i = 0; i < m * step->hidden; i += LANES)
        store_bf16(x + i, load_bf16(x + i) + load_bf16(step->addend + i));
    return 0;
}

static void take_rows(const Step *step, const bf16 *from, bf16 *to, i64 width) {
    for (i64 i = 0; i < step->num_rows; i++)
        memcpy(to + i * width, from + step->rows[i] * width, (size_t)width * sizeof(bf16));
}

// Of the last layer only the needed rows go on after attention: what later tokens need of the others is in the cache.
static int run_layer(const Step *step, const Layer *layer, int last) {
    norm_rows(step, &layer->norm_in, step->x, step->normed, step->tokens);
    if (multiply(step, &layer->qkv, step->normed, step->qkv, NULL, step->tokens, step->slots)) return -1;
    attend_all(step, layer);
    bf16 *x = step->x, *attended = step->attended;
    const int32_t *slots = step->slots;
    i64 m = step->tokens;
    if (last) {
        take_rows(step, x, step->y, step->hidden);
        take_rows(step, attended, step->q, layer->rope.heads * layer->rope.size);
        x = step->y, attended = step->q, m = step->num_rows, slots = step->row_slots;
    }
    if (add_to(step, x, attended, &layer->out, &layer->norm_attended, m, slots)) return -1;
    norm_rows(step, &layer->norm_mlp, x, step->normed, m);
    if (multiply(step, &layer->gated, step->normed, step->inner, NULL, m, slots)) return -1;
    return add_to(step, x, step->inner, &layer->down, &layer->norm_mixed, m, slots);
}

int slipway_layers(const Layer *layers, i64 count, const Step *step) {
    for (i64 i = 0; i < count; i++)
        if (run_layer(step, layers + i, i == count - 1)) return -1;
    return 0;
}
