// Inner products: what a micro kernel reads of both matrices, and the sums of its tile, PANEL columns of some rows.
//
// A step of a sum is a word of each column: a pair of bf16, or four int8. The input is packed as the products take it:
//   bf16, PAIR_PRODUCTS   a word for each step: the pair
//   bf16, else            two words: both numbers as floats. Weights are widened in registers
//   int8                  a word: the four, plus OFFSET
// Weights of 4 bits have products of their own: int4.h.

enum After {
    NOTHING,
    ADD,        // y += other
    SILU_GATED, // a panel holds PANEL/2 columns of gate and the same of up: y = silu(gate) * up
    GELU_GATED, // the same with gelu, by its tanh approximation
};

// y[m, n] = x[m, k] . w[n, k] + bias[n], and then what `after` says.
typedef struct {
    const bf16 *x;        // [m, k]
    const void *w;        // packed: bf16 [n/PANEL, k/2, PANEL, 2], int8 [n/PANEL, k/4, PANEL, 4], int4: see int4.h
    const float *w_scale; // int8: of each column; int4: [n/PANEL, k/group, PANEL]
    const int32_t *w_sum; // int8: of each column, times OFFSET
    const uint8_t *w_zero; // int4: [n/PANEL, k/group, PANEL]
    const float *bias;    // [n] or NULL
    const bf16 *other;    // ADD: [m, n]
    void *y;              // bf16 or float [m, n]; GATED: [m, n/2]
    i64 m, k, n;
    i64 group; // int4: inputs with the same scale, a multiple of 32 and at most MOST_GROUP; 0: other weights
    int after, y_float, is_int8;
    Adapters adapters;
} Linear;

#define STEP_BYTES (PANEL * 4) // of a panel
#define MOST_GROUP 256

#ifdef PAIR_PRODUCTS
#define PAIR_WORDS 1
#else
#define PAIR_WORDS 2
#endif

ALWAYS i64 steps_of(const Linear *job) { return job->k / (job->is_int8 ? 4 : 2); }
// Words of a row of the packed input, and its scales: int4 also has sums.
ALWAYS i64 words_of(const Linear *job) { return job->group ? job->k / 4 : steps_of(job) * (job->is_int8 ? 1 : PAIR_WORDS); }
ALWAYS i64 row_scales(const Linear *job) { return job->group ? 2 * (job->k / job->group) : 1; }

typedef struct {
    const char *at;
    i64 step; // bytes, with each step of the sum
} Next;

// A tile of sums in the making: which rows and columns it is of, the steps at hand, and where sums wait between blocks.
typedef struct {
    const Linear *job;
    i64 row, panel;
    int panels; // neighbours; more than one only where the tile has all steps of the sum
    const uint32_t *x; // packed
    const char *w;
    i64 steps;
    uint32_t *sums; // [rows, PANEL]
    int first, last; // of the blocks of a sum
    Next next;       // what will be read later
    const float *scales; // int8: of the rows
} Tile;

#define AHEAD 2048 // bytes of weights that are fetched before they are needed

ALWAYS void fetch_next(Next *next) {
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
    for (int c = 0; c < COLUMNS; c++) sums[c] = given[c];
    if (__builtin_expect(job->adapters.slots && job->adapters.slots[row] >= 0, 0)) {
        vf adapted[COLUMNS]; // apart, so that the others stay in registers
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) adapted[c] = given[c];
        expand(&job->adapters, row, column, job->after >= SILU_GATED, adapted);
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) sums[c] = adapted[c];
    }
    UNROLLED
    for (int c = 0; c < COLUMNS; c++)
        if (job->bias) sums[c] = sums[c] + load(job->bias + column + c * LANES);
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
ALWAYS vi words_at(const char *w, int column) { return load_words(w + column * LANES * 4); }

// `rows` is a constant where these are inlined, so that the sums are registers.
#ifdef PAIR_PRODUCTS
ALWAYS void add_step_bf16(vf sums[][COLUMNS], const uint32_t *x, const char *w, const int rows) {
    vi each[COLUMNS];
    UNROLLED
    for (int c = 0; c < COLUMNS; c++) each[c] = words_at(w, c);
    UNROLLED
    for (int r = 0; r < rows; r++) {
        vi pair = splat_word(x[r]);
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) sums[r][c] = add_pairs(sums[r][c], pair, each[c]);
    }
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

// The words are loaded twice, because no register is left to keep them: `w` is hidden from the compiler, which would keep
// them on the stack.
ALWAYS void add_step_bf16(vf sums[][COLUMNS], const uint32_t *words, const char *w, const int rows) {
    const float *x = (const float *)words;
    vf each[COLUMNS];
    UNROLLED
    for (int c = 0; c < COLUMNS; c++) each[c] = even_of(words_at(w, c));
    add_products(sums, x, each, rows);
    __asm__("" : "+r"(w));
    UNROLLED
    for (int c = 0; c < COLUMNS; c++) each[c] = odd_of(words_at(w, c));
    add_products(sums, x + rows, each, rows);
}
#endif

ALWAYS void add_step_int8(vi sums[][COLUMNS], const uint32_t *x, const char *w, const int rows) {
    vi each[COLUMNS];
    UNROLLED
    for (int c = 0; c < COLUMNS; c++) each[c] = words_at(w, c);
    UNROLLED
    for (int r = 0; r < rows; r++) {
        vi four = splat_word(x[r]);
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) sums[r][c] = add_fours(sums[r][c], four, each[c]);
    }
}

// `panels` is a constant too. Neighbouring panels are taken together where there are few rows: each addition to a sum waits
// for the one before it, so only many sums keep the units busy.
ALWAYS void micro(const Tile *tile, const int rows, const int panels, const int is_int8) {
    const i64 panel_bytes = tile->steps * STEP_BYTES, step_words = (is_int8 ? 1 : PAIR_WORDS) * rows;
    const uint32_t *x = tile->x;
    const char *w = tile->w;
    Next next = tile->next;
    vi sums[ROWS][COLUMNS]; // floats for bf16
    begin(tile, sums, rows * panels);
    const i64 turn = tile->steps - AHEAD / STEP_BYTES; // from there on what comes is in the panels after these
    for (i64 step = 0; step < tile->steps; step++, w += STEP_BYTES, x += step_words) {
        const i64 ahead = panels > 1 && step >= turn ? AHEAD + (panels - 1) * panel_bytes : AHEAD;
        if (panels == 1) fetch_next(&next);
        UNROLLED
        for (int panel = 0; panel < panels; panel++) {
            const char *here = w + panel * panel_bytes;
            for (int line = 0; line < STEP_BYTES; line += 64) prefetch(here + ahead + line);
            if (is_int8) add_step_int8(sums + panel * rows, x, here, rows);
            else add_step_bf16((vf(*)[COLUMNS])sums + panel * rows, x, here, rows);
        }
    }
    Tile done = *tile;
    UNROLLED
    for (int panel = 0; panel < panels; panel++, done.panel++) {
        if (is_int8) end_int8(&done, sums + panel * rows, rows);
        else end_bf16(&done, (const vf(*)[COLUMNS])sums + panel * rows, rows);
    }
}

#if ROWS == 12
#define EACH_COUNT(call) \
    switch (rows) { \
    case 1: call(1); break; \
    case 2: call(2); break; \
    case 3: call(3); break; \
    case 4: call(4); break; \
    case 5: call(5); break; \
    case 6: call(6); break; \
    case 7: call(7); break; \
    case 8: call(8); break; \
    case 9: call(9); break; \
    case 10: call(10); break; \
    case 11: call(11); break; \
    default: call(12); break; \
    }
#else
#define EACH_COUNT(call) \
    switch (rows) { \
    case 1: call(1); break; \
    case 2: call(2); break; \
    case 3: call(3); break; \
    case 4: call(4); break; \
    case 5: call(5); break; \
    default: call(6); break; \
    }
#endif

// How many of `panels` a lone group of rows takes together: as many as there are registers for.
static i64 panels_together(i64 rows, i64 panels) {
    const i64 most = rows == 1 ? 4 : rows <= 3 ? 2 : 1;
    return panels < most ? 1 : most;
}

#define ONE_PANEL(rows) micro(tile, rows, 1, is_int8)

ALWAYS void tile_of(const Tile *tile, int rows, const int is_int8) {
    if (tile->panels == 4) micro(tile, 1, 4, is_int8);
    else if (tile->panels == 2 && rows == 2) micro(tile, 2, 2, is_int8);
    else if (tile->panels == 2) micro(tile, 3, 2, is_int8);
    else EACH_COUNT(ONE_PANEL)
}

static void tile_bf16(const Tile *tile, int rows) { tile_of(tile, rows, 0); }
static void tile_int8(const Tile *tile, int rows) { tile_of(tile, rows, 1); }
ALWAYS void end_of_tiles(void) {}
#endif
