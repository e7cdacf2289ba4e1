// Inner products: what a micro kernel reads of both matrices, and the sums of its tile, PANEL columns of some rows.
//
// A step of a sum is a word of each column: a pair of bf16, or four int8. The input is packed as the products take it:
//   bf16, PAIR_PRODUCTS   a word for each step: the pair
//   bf16, else            two words: both numbers as floats. Weights are widened in registers, or a block of them before
//   int8, FOUR_PRODUCTS   a word: the four, plus OFFSET
//   int8, else            two words: two pairs of int16. Weights are widened in registers

enum After {
    NOTHING,
    ADD,        // y += other
    SILU_GATED, // a panel holds PANEL/2 columns of gate and the same of up: y = silu(gate) * up
    GELU_GATED, // the same with gelu, by its tanh approximation
};

// y[m, n] = x[m, k] . w[n, k] + bias[n], and then what `after` says.
typedef struct {
    const bf16 *x;        // [m, k]
    const void *w;        // packed: bf16 [n/PANEL, k/2, PANEL, 2], or int8 [n/PANEL, k/4, PANEL, 4]
    const float *w_scale; // int8: of each column
    const int32_t *w_sum; // int8: of each column, times OFFSET
    const float *bias;    // [n] or NULL
    const bf16 *other;    // ADD: [m, n]
    void *y;              // bf16 or float [m, n]; GATED: [m, n/2]
    i64 m, k, n;
    int after, y_float, is_int8;
} Linear;

#define STEP_BYTES (PANEL * 4) // of a panel

#ifdef PAIR_PRODUCTS
#define PAIR_WORDS 1
#else
#define PAIR_WORDS 2
#endif
#ifdef FOUR_PRODUCTS
#define FOUR_WORDS 1
#else
#define FOUR_WORDS 2
#define OFFSET 0
#endif

ALWAYS i64 steps_of(const Linear *job) { return job->k / (job->is_int8 ? 4 : 2); }
ALWAYS i64 words_of(const Linear *job) { return steps_of(job) * (job->is_int8 ? FOUR_WORDS : PAIR_WORDS); }

typedef struct {
    const char *at;
    i64 step; // bytes, with each step of the sum
} Next;

// A tile of sums in the making: which rows and columns it is of, the steps at hand, and where sums wait between blocks.
typedef struct {
    const Linear *job;
    i64 row, panel;
    const uint32_t *x; // packed
    const char *w;
    i64 steps;
    uint32_t *sums; // [rows, PANEL]
    int first, last; // of the blocks of a sum
    Next next;       // what will be read later
    const float *scales; // int8: of the rows
} Tile;

#define AHEAD 2048 // bytes of weights that are fetched before they are needed

ALWAYS void fetch(const char *w, Next *next) {
    for (int line = 0; line < STEP_BYTES; line += 64) prefetch(w + AHEAD + line);
    prefetch_far(next->at);
    next->at += next->step;
}

ALWAYS vf activate(vf gate, int after) {
    if (after == SILU_GATED) return gate * sigmoid(gate);
    // 0.5*x*(1+tanh(u)) = x*sigmoid(2u)
    vf cube = gate * (gate * gate);
    return gate * sigmoid(fma_of(cube, splat(0.044715f), gate) * splat(1.5957691216f));
}

ALWAYS void put(const Linear *job, i64 row, i64 column, i64 width, vf value) {
    if (job->y_float) store((float *)job->y + row * width + column, value);
    else store_bf16((bf16 *)job->y + row * width + column, value);
}

ALWAYS void finish(const Linear *job, i64 row, i64 column, const vf given[COLUMNS]) {
    vf sums[COLUMNS];
    UNROLLED
    for (int c = 0; c < COLUMNS; c++)
        sums[c] = job->bias ? given[c] + load(job->bias + column + c * LANES) : given[c];
    if (job->after >= SILU_GATED) {
        UNROLLED
        for (int c = 0; c < COLUMNS / 2; c++)
            put(job, row, column / 2 + c * LANES, job->n / 2, activate(sums[c], job->after) * sums[COLUMNS / 2 + c]);
        return;
    }
    UNROLLED
    for (int c = 0; c < COLUMNS; c++) {
        const i64 at = column + c * LANES;
        if (job->after == ADD) sums[c] = sums[c] + load_bf16(job->other + row * job->n + at);
        put(job, row, at, job->n, sums[c]);
    }
}

ALWAYS void begin(const Tile *tile, vi sums[][COLUMNS], const int rows) {
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int c = 0; c < COLUMNS; c++)
            sums[r][c] = tile->first ? (vi){0} : load_words(tile->sums + r * PANEL + c * LANES);
}

ALWAYS void keep_sums(const Tile *tile, vi sums[][COLUMNS], const int rows) {
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) store_words(tile->sums + r * PANEL + c * LANES, sums[r][c]);
}

ALWAYS void end_bf16(const Tile *tile, const vf sums[][COLUMNS], const int rows) {
    if (!tile->last) {
        keep_sums(tile, (vi(*)[COLUMNS])sums, rows);
        return;
    }
    UNROLLED
    for (int r = 0; r < rows; r++) finish(tile->job, tile->row + r, tile->panel * PANEL, sums[r]);
}

ALWAYS void end_int8(const Tile *tile, vi sums[][COLUMNS], const int rows) {
    if (!tile->last) {
        keep_sums(tile, sums, rows);
        return;
    }
    const Linear *job = tile->job;
    const i64 column = tile->panel * PANEL;
    UNROLLED
    for (int r = 0; r < rows; r++) {
        vf values[COLUMNS];
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) {
            vi whole = OFFSET ? sums[r][c] - load_words(job->w_sum + column + c * LANES) : sums[r][c];
            values[c] = to_float(whole) * splat(tile->scales[r]) * load(job->w_scale + column + c * LANES);
        }
        finish(job, tile->row + r, column, values);
    }
}

#ifndef TILE_PRODUCTS
// `rows` is a constant where these are inlined, so that the sums are registers.
#ifdef PAIR_PRODUCTS
ALWAYS void micro_bf16(const Tile *tile, const int rows) {
    const uint32_t *x = tile->x;
    const char *w = tile->w;
    Next next = tile->next;
    vf sums[ROWS][COLUMNS];
    begin(tile, (vi(*)[COLUMNS])sums, rows);
    for (i64 step = 0; step < tile->steps; step++, w += STEP_BYTES, x += rows) {
        fetch(w, &next);
        vi each[COLUMNS];
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) each[c] = load_words(w + c * LANES * 4);
        UNROLLED
        for (int r = 0; r < rows; r++) {
            vi pair = splat_word(x[r]);
            UNROLLED
            for (int c = 0; c < COLUMNS; c++) sums[r][c] = add_pairs(sums[r][c], pair, each[c]);
        }
    }
    end_bf16(tile, sums, rows);
}
#else
ALWAYS void add_products(vf sums[][COLUMNS], const float *x, const vf w[COLUMNS], const int rows) {
    UNROLLED
    for (int r = 0; r < rows; r++) {
        vf number = splat(x[r]);
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) sums[r][c] = fma_of(number, w[c], sums[r][c]);
    }
}

ALWAYS void micro_bf16(const Tile *tile, const int rows) {
    const float *x = (const float *)tile->x;
    const char *w = tile->w;
    Next next = tile->next;
    vf sums[ROWS][COLUMNS];
    begin(tile, (vi(*)[COLUMNS])sums, rows);
    for (i64 step = 0; step < tile->steps; step++, w += STEP_BYTES, x += 2 * rows) {
        fetch(w, &next);
        vf even[COLUMNS], odd[COLUMNS];
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) even[c] = even_of(load_words(w + c * LANES * 4));
        add_products(sums, x, even, rows);
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) odd[c] = odd_of(load_words(w + c * LANES * 4));
        add_products(sums, x + rows, odd, rows);
    }
    end_bf16(tile, sums, rows);
}

// The same, over weights that were widened before: floats [2 * steps, PANEL].
ALWAYS void micro_widened(const Tile *tile, const int rows) {
    const float *x = (const float *)tile->x, *w = (const float *)tile->w;
    Next next = tile->next;
    vf sums[ROWS][COLUMNS];
    begin(tile, (vi(*)[COLUMNS])sums, rows);
    for (i64 step = 0; step < tile->steps; step++) {
        prefetch_far(next.at);
        next.at += next.step;
        UNROLLED
        for (int i = 0; i < 2; i++, w += PANEL, x += rows) {
            vf each[COLUMNS];
            UNROLLED
            for (int c = 0; c < COLUMNS; c++) each[c] = load(w + c * LANES);
            add_products(sums, x, each, rows);
        }
    }
    end_bf16(tile, sums, rows);
}
#endif

ALWAYS void micro_int8(const Tile *tile, const int rows) {
    const uint32_t *x = tile->x;
    const char *w = tile->w;
    Next next = tile->next;
    vi sums[ROWS][COLUMNS];
    begin(tile, sums, rows);
    for (i64 step = 0; step < tile->steps; step++, w += STEP_BYTES, x += FOUR_WORDS * rows) {
        fetch(w, &next);
        vi each[COLUMNS];
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) each[c] = load_words(w + c * LANES * 4);
#ifdef FOUR_PRODUCTS
        UNROLLED
        for (int r = 0; r < rows; r++) {
            vi four = splat_word(x[r]);
            UNROLLED
            for (int c = 0; c < COLUMNS; c++) sums[r][c] = add_fours(sums[r][c], four, each[c]);
        }
#else
        vi low[COLUMNS], high[COLUMNS];
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) low[c] = low_bytes(each[c]), high[c] = high_bytes(each[c]);
        UNROLLED
        for (int r = 0; r < rows; r++) {
            vi pair = splat_word(x[r]), other = splat_word(x[rows + r]);
            UNROLLED
            for (int c = 0; c < COLUMNS; c++) sums[r][c] += int16_pairs(pair, low[c]) + int16_pairs(other, high[c]);
        }
#endif
    }
    end_int8(tile, sums, rows);
}

#if ROWS == 12
#define EACH_COUNT(micro) \
    switch (rows) { \
    case 1: micro(tile, 1); break; \
    case 2: micro(tile, 2); break; \
    case 3: micro(tile, 3); break; \
    case 4: micro(tile, 4); break; \
    case 5: micro(tile, 5); break; \
    case 6: micro(tile, 6); break; \
    case 7: micro(tile, 7); break; \
    case 8: micro(tile, 8); break; \
    case 9: micro(tile, 9); break; \
    case 10: micro(tile, 10); break; \
    case 11: micro(tile, 11); break; \
    default: micro(tile, 12); break; \
    }
#else
#define EACH_COUNT(micro) \
    switch (rows) { \
    case 1: micro(tile, 1); break; \
    case 2: micro(tile, 2); break; \
    case 3: micro(tile, 3); break; \
    case 4: micro(tile, 4); break; \
    case 5: micro(tile, 5); break; \
    default: micro(tile, 6); break; \
    }
#endif

static void tile_bf16(const Tile *tile, int rows) { EACH_COUNT(micro_bf16) }
static void tile_int8(const Tile *tile, int rows) { EACH_COUNT(micro_int8) }
#ifndef PAIR_PRODUCTS
static void tile_widened(const Tile *tile, int rows) { EACH_COUNT(micro_widened) }
#endif
ALWAYS void end_of_tiles(void) {}
#endif
