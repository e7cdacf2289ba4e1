// Linear layers: the input is packed, then threads take blocks of the output.

// Rows are taken in groups of ROWS at most, as equal as they can be: a small group uses its weights badly.
static i64 most_rows(const Linear *job); // by the kind of the weights
static void pack_int4_part(const Linear *job, i64 part);
static void int4_part(void *given, i64 part);

static i64 groups_of(const Linear *job) { return (job->m + most_rows(job) - 1) / most_rows(job); }

static i64 first_row(const Linear *job, i64 group) {
    const i64 groups = groups_of(job), more = job->m % groups;
    return group * (job->m / groups) + (group < more ? group : more);
}

// --- the input ---------------------------------------------------------------------------------------------------------
// For a group of rows, word after word of each row, so that one pointer walks through memory in order; with TILE_PRODUCTS
// tile after tile, in which each row's words are together. int8 rows have one scale each.
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

// LANES words of a row from the given one on, of which `count` are there; zeros after them.
ALWAYS vi some_words(const Linear *job, const bf16 *x, i64 word, i64 count, float inverse) {
    if (!job->is_int8) {
        if (PAIR_WORDS == 2) return (vi)load_some_bf16(x + word, count);
        if (count >= LANES) return load_words(x + 2 * word);
        uint32_t room[LANES] = {0};
        memcpy(room, x + 2 * word, (size_t)count * 4);
        return load_words(room);
    }
    int8_t room[4 * LANES] = {0};
    for (i64 i = 0; i < count * 4; i += LANES) store_bytes(room + i, rounded(load_bf16(x + word * 4 + i) * splat(inverse)) + OFFSET);
    return load_words(room);
}

// The first `rows` words; what is after them may be written over while there is `room`.
ALWAYS void put_words(uint32_t *to, vi words, i64 rows, i64 room) {
    if (room >= LANES) store_words(to, words);
    else memcpy(to, &words, (size_t)rows * 4);
}

// The words from `word` on, `count` of them, of all rows of a group.
#ifdef TILE_PRODUCTS
ALWAYS void put_rows(uint32_t *to, vi row[], i64 rows, i64 word, i64 count, i64 words) {
    for (i64 r = 0; r < rows; r++)
        put_words(to + word * rows + r * count, row[r], count, (words - word) * rows - r * count);
}
#else
ALWAYS void put_rows(uint32_t *to, vi row[], i64 rows, i64 word, i64 count, i64 words) {
    if (rows == 1) {
        put_words(to + word, row[0], count, count);
        return;
    }
    // More rows than lanes: in two parts.
    for (i64 from = 0; from < rows; from += LANES) {
        const i64 some = rows - from < LANES ? rows - from : LANES;
        transpose(row + from);
        for (i64 i = 0; i < count; i++)
            put_words(to + (word + i) * rows + from, row[from + i], some, some < rows ? 0 : (words - word - i) * rows);
    }
}
#endif

static void pack_part(void *given, i64 part) {
    const Linear *job = given;
    const i64 first = first_row(job, part), rows = first_row(job, part + 1) - first, words = words_of(job);
    uint32_t *to = packed.words + first * words;
    float inverse[ROWS] = {0};
    for (i64 r = 0; r < rows && job->is_int8; r++) {
        const float top = largest_magnitude(job->x + (first + r) * job->k, job->k);
        packed.scales[first + r] = top / 127.0f;
        inverse[r] = top > 0 ? 127.0f / top : 0.0f;
    }
    for (i64 word = 0; word < words; word += LANES) {
        const i64 count = words - word < LANES ? words - word : LANES;
        vi row[(ROWS + LANES - 1) / LANES * LANES] = {{0}};
        for (i64 r = 0; r < rows; r++)
            row[r] = some_words(job, job->x + (first + r) * job->k, word, count, inverse[r]);
        put_rows(to, row, rows, word, count, words);
    }
}

// The input's groups, and what adapters multiply it by.
static void input_part(void *given, i64 part) {
    const Linear *job = given;
    const i64 groups = groups_of(job);
    if (part < groups && job->group) pack_int4_part(job, part);
    else if (part < groups) pack_part(given, part);
    else shrink_part(&job->adapters, job->x, job->m, job->k, part - groups);
}

// --- the output --------------------------------------------------------------------------------------------------------
// A lone group of rows waits for memory: neighbouring panels, so that a thread reads on in a stream. Several groups
// compute: a part is a chunk of them with a strip of panels. Its sums are taken in blocks of the steps, so that what is read
// again stays in the caches: the block of a panel for all groups of the chunk, and that of the chunk for all panels.

// Panels of a part where there is a lone group: the least, and the most where threads get as many parts each. At each start
// of a part memory is waited for.
#define STREAM 4
#define LONGEST_STREAM 16
#define STREAMS_OF_THREAD 2
#ifdef TILE_PRODUCTS // so fast that weights would be read too slowly for each 120 rows
#define CHUNK_ROWS 256 // at most
#define STRIP 4        // panels, at most
#else
#define CHUNK_ROWS 120
#define STRIP 8
#endif
#define BLOCK_STEPS 1024
#define PARTS_OF_THREAD 6

typedef struct {
    const Linear *job;
    i64 groups, chunks, strip, strips;
} Plan;

static Plan plan_of(const Linear *job) {
    const i64 groups = groups_of(job), panels = job->n / PANEL, most = CHUNK_ROWS / most_rows(job);
    const i64 chunks = (groups + most - 1) / most;
    if (groups == 1) {
        i64 stream = panels / (STREAMS_OF_THREAD * pool.threads) / STREAM * STREAM;
        stream = stream < STREAM ? STREAM : stream > LONGEST_STREAM ? LONGEST_STREAM : stream;
        return (Plan){job, 1, 1, stream, (panels + stream - 1) / stream};
    }
    i64 strip = panels * chunks / (PARTS_OF_THREAD * pool.threads);
    strip = strip < 1 ? 1 : strip > STRIP ? STRIP : strip;
    return (Plan){job, groups, chunks, strip, (panels + strip - 1) / strip};
}

// The groups of a chunk and the panels of a strip.
typedef struct {
    i64 group, end_group, panel, end_panel;
} Share;

static Share share_of(const Plan *plan, i64 part) {
    const i64 chunk = part / plan->strips, strip = part % plan->strips, panels = plan->job->n / PANEL;
    const i64 end = (strip + 1) * plan->strip;
    return (Share){
        plan->groups * chunk / plan->chunks, plan->groups * (chunk + 1) / plan->chunks, strip * plan->strip, end < panels ? end : panels
    };
}

static void linear_part(void *given, i64 part) {
    const Plan *plan = given;
    const Linear *job = plan->job;
    const Share share = share_of(plan, part);
    const i64 steps = steps_of(job), row = first_row(job, share.group), groups = share.end_group - share.group;
    const i64 step_words = words_of(job) / steps, step_panels = share.end_panel - share.panel;
    uint32_t sums[CHUNK_ROWS * PANEL * STRIP] __attribute__((aligned(64)));
    const i64 block = plan->groups == 1 ? steps : BLOCK_STEPS;
    for (i64 from = 0; from < steps; from += block) {
        const i64 count = steps - from < block ? steps - from : block;
        for (i64 panel = share.panel, panels; panel < share.end_panel; panel += panels) {
            panels = plan->groups == 1 ? panels_together(job->m, share.end_panel - panel) : 1;
            const char *w = (const char *)job->w + (panel * steps + from) * STEP_BYTES, *after = w + steps * STEP_BYTES;
            for (i64 i = 0; i < panels && plan->groups == 1 && job->adapters.slots; i++)
                fetch_expansion(&job->adapters, job->m, (panel + i) * PANEL, job->after >= SILU_GATED);
            const int fetch_next = groups > 1 && panel + 1 < share.end_panel;
            for (i64 group = share.group; group < share.end_group; group++) {
                const i64 here = first_row(job, group), at = group - share.group;
                const int rows = (int)(first_row(job, group + 1) - here);
                Tile tile = {
                    job, here, panel, (int)panels, packed.words + (here * steps + from * rows) * step_words, w, count,
                    sums + ((here - row) * step_panels + (panel - share.panel) * rows) * PANEL, from == 0, from + count == steps,
                    {w, 0}, packed.scales + here,
                };
                if (fetch_next) tile.next = (Next){after + count * STEP_BYTES * at / groups, (STEP_BYTES + groups - 1) / groups};
                if (job->is_int8) tile_int8(&tile, rows);
                else tile_bf16(&tile, rows);
            }
        }
    }
    end_of_tiles();
}

int slipway_linear(const Linear *job) {
    if (job->m == 0) return 0;
    if (!reserve_packed(job->m * words_of(job), job->m * row_scales(job))) return -1;
    const i64 shrinking = shrink_parts(&job->adapters, job->m);
    if (shrinking && !reserve_shrunk(job->m * job->adapters.parts * job->adapters.most_rank)) return -1;
    run(input_part, (void *)job, groups_of(job) + shrinking);
    Plan plan = plan_of(job);
    run(job->group ? int4_part : linear_part, &plan, plan.chunks * plan.strips);
    return 0;
}
