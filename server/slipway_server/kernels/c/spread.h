// How threads share the attention of a step: by sequences, tiles and heads; where that is too little, by splits too.

typedef struct {
    const Attend *job;
    i64 most;     // heads side by side
    int in_splits;
    float *sums;  // in_splits: of each part
} Spread;

#define PARTS_EACH 4 // of a thread, at least: the last one to end is not long alone

// Heads that one part takes: where there are few queries, as many as fit into a tile.
static i64 heads_of(const Spread *spread, i64 span) {
    const Attend *job = spread->job;
    const i64 rows = queries_of(job, span, 0) * (job->heads / job->kv_heads);
    i64 heads = 1;
    while (heads * 2 <= spread->most && heads * 2 * rows <= TILE && job->kv_heads % (heads * 2) == 0) heads *= 2;
    return heads;
}

static i64 splits_of(const Spread *spread, i64 span) {
    if (!spread->in_splits) return 1;
    const Attend *job = spread->job;
    const Place first = place_at(job, span, 0, 1, 0);
    return (job->starts[span] + job->counts[span] - 1) / BLOCK / SPLIT - first.oldest / SPLIT + 1;
}

static i64 places_of(const Spread *spread, i64 span) {
    return tiles_of(spread->job, span) * (spread->job->kv_heads / heads_of(spread, span));
}

static i64 parts_of(const Spread *spread, i64 span) { return places_of(spread, span) * splits_of(spread, span); }

static i64 all_parts(const Spread *spread) {
    i64 parts = 0;
    for (i64 span = 0; span < spread->job->spans; span++) parts += parts_of(spread, span);
    return parts;
}

// Later tiles of a prompt see more keys: they are handed out first, so that no thread ends alone with a long one.
static Place place_of_number(const Spread *spread, i64 span, i64 number) {
    const i64 heads = heads_of(spread, span), groups = spread->job->kv_heads / heads;
    return place_at(spread->job, span, number % groups * heads, heads, tiles_of(spread->job, span) - 1 - number / groups);
}

static void attend_part(void *given, i64 part) {
    const Spread *spread = given;
    i64 span = spread->job->spans - 1, left = part;
    while (left >= parts_of(spread, span)) left -= parts_of(spread, span--);
    const Place at = place_of_number(spread, span, left);
    attend_tile(spread->job, &at);
}

// --- long contexts of few sequences: a part is one split of a place, with its sums in memory -----------------------------

#define SUMS_OF_ROW(size) ((size) + 2)

ALWAYS Sums sums_of_part(const Spread *spread, i64 part) {
    const i64 size = spread->job->size;
    float *at = spread->sums + part * TILE * SUMS_OF_ROW(size);
    return (Sums){at, at + TILE * size, at + TILE * (size + 1)};
}

static void attend_split_part(void *given, i64 part) {
    const Spread *spread = given;
    i64 span = spread->job->spans - 1, left = part;
    while (left >= parts_of(spread, span)) left -= parts_of(spread, span--);
    const i64 splits = splits_of(spread, span);
    const Place at = place_of_number(spread, span, left / splits);
    const i64 split = place_at(spread->job, span, 0, 1, 0).oldest / SPLIT + left % splits;
    if (split < at.oldest / SPLIT || split > at.last / SPLIT) return;
    uint32_t q[TILE * MAX_HEAD / 2 * PAIR_WORDS];
    take_queries(spread->job, &at, q);
    attend_split(spread->job, &at, q, split, sums_of_part(spread, part));
    end_of_tiles();
}

static void add_splits_part(void *given, i64 number) {
    const Spread *spread = given;
    i64 span = spread->job->spans - 1, left = number, part = 0;
    while (left >= places_of(spread, span)) left -= places_of(spread, span), part += parts_of(spread, span--);
    const Place at = place_of_number(spread, span, left);
    const i64 first = place_at(spread->job, span, 0, 1, 0).oldest / SPLIT;
    part += left * splits_of(spread, span) - first;
    const Sums total = sums_of_part(spread, part + at.oldest / SPLIT);
    for (i64 split = at.oldest / SPLIT + 1; split <= at.last / SPLIT; split++)
        add_split(spread->job, at.heads * at.rows, total, sums_of_part(spread, part + split));
    put_attended(spread->job, &at, total);
}

static struct {
    float *room;
    i64 size;
} kept_sums;

static float *reserve_sums(i64 size) {
    if (kept_sums.size < size) {
        free(kept_sums.room);
        kept_sums.room = malloc((size_t)size * sizeof(float));
        kept_sums.size = kept_sums.room ? size : 0;
    }
    return kept_sums.room;
}

// Without memory for their sums the splits are added one after the other, which gives the same numbers.
static int attend_in_splits(const Spread *given) {
    Spread spread = *given;
    const i64 places = all_parts(&spread);
    spread.in_splits = 1;
    const i64 parts = all_parts(&spread);
    if (parts == places || !(spread.sums = reserve_sums(parts * TILE * SUMS_OF_ROW(spread.job->size)))) return 0;
    run(attend_split_part, &spread, parts);
    run(add_splits_part, &spread, places);
    return 1;
}

void slipway_attend(const Attend *job) {
    Spread spread = {job, job->kv_heads, 0, NULL};
    while (spread.most > 1 && all_parts(&spread) < PARTS_EACH * pool.threads) spread.most /= 2;
    if (all_parts(&spread) < PARTS_EACH * pool.threads && attend_in_splits(&spread)) return;
    run(attend_part, &spread, all_parts(&spread));
}
