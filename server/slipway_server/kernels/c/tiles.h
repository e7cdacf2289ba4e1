// Inner products by AMX: tiles of 16 rows and 16 words, summed over 16 steps by one instruction.
//
// The words of a panel's columns for 16 steps are what the instruction takes as its second matrix, so packed weights are
// the same as without tiles. A row's sum takes the steps in order, whatever rows are beside it, and one row is computed as
// many are: in few rows the time goes to reading the weights.

#define TILE_ROWS 16
#define TILE_STEPS 16

// Registers: sums of upper and lower rows by left and right columns, and what is multiplied. GCC wants them spelled out.
#define SUMS_00 0
#define SUMS_01 1
#define SUMS_10 2
#define SUMS_11 3
#define INPUT_0 4
#define INPUT_1 5
#define WEIGHTS_0 6
#define WEIGHTS_1 7
#define TILES 8

// Makes the compiler store what lies there before the next instruction: the intrinsics of GCC do not say what they read.
ALWAYS void stored(const void *at) { __asm__ volatile("" ::"r"(at) : "memory"); }

// What the registers of this thread are shaped for. Shaping them clears them.
static _Thread_local struct {
    int rows, steps;
} shaped;

static void shape_tiles(int rows, int steps) {
    if (shaped.rows == rows && shaped.steps == steps) return;
    shaped.rows = rows, shaped.steps = steps;
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    const int upper = rows < TILE_ROWS ? rows : TILE_ROWS, lower = rows - upper;
    const int heights[TILES] = {upper, upper, lower, lower, upper, lower, steps, steps};
    const int widths[TILES] = {16, 16, 16, 16, steps, steps, 16, 16};
    for (int tile = 0; tile < TILES; tile++)
        if (heights[tile]) config.rows[tile] = (uint8_t)heights[tile], config.row_bytes[tile] = (uint16_t)(widths[tile] * 4);
    stored(&config);
    _tile_loadconfig(&config);
}

// The state of registers that are in use is saved at each switch of threads.
ALWAYS void end_of_tiles(void) {
    if (shaped.rows) _tile_release();
    shaped.rows = 0;
}

// Sums of up to 32 rows and 32 columns; `row` is the distance of rows in words, `both` whether there are more than 16 rows.
ALWAYS void clear_sums(const int both) {
    _tile_zero(SUMS_00);
    _tile_zero(SUMS_01);
    if (!both) return;
    _tile_zero(SUMS_10);
    _tile_zero(SUMS_11);
}

ALWAYS void load_sums(const void *from, i64 row, const int both) {
    const uint32_t *sums = from;
    stored(from);
    _tile_loadd(SUMS_00, sums, row * 4);
    _tile_loadd(SUMS_01, sums + LANES, row * 4);
    if (!both) return;
    _tile_loadd(SUMS_10, sums + TILE_ROWS * row, row * 4);
    _tile_loadd(SUMS_11, sums + TILE_ROWS * row + LANES, row * 4);
}

ALWAYS void store_sums(void *to, i64 row, const int both) {
    uint32_t *sums = to;
    _tile_stored(SUMS_00, sums, row * 4);
    _tile_stored(SUMS_01, sums + LANES, row * 4);
    if (!both) return;
    _tile_stored(SUMS_10, sums + TILE_ROWS * row, row * 4);
    _tile_stored(SUMS_11, sums + TILE_ROWS * row + LANES, row * 4);
}

#define ADD_WITH(product) \
    do { \
        product(SUMS_00, INPUT_0, WEIGHTS_0); \
        product(SUMS_01, INPUT_0, WEIGHTS_1); \
        if (both) { \
            product(SUMS_10, INPUT_1, WEIGHTS_0); \
            product(SUMS_11, INPUT_1, WEIGHTS_1); \
        } \
    } while (0)

// Adds the steps that the registers are shaped for. `x_row` and `w_step`: words from one row, or one step, to the next.
ALWAYS void add_tiles(const uint32_t *x, i64 x_row, const void *weights, i64 w_step, const int both, const int is_int8) {
    const uint32_t *w = weights;
    stored(x);
    _tile_loadd(INPUT_0, x, x_row * 4);
    _tile_loadd(WEIGHTS_0, w, w_step * 4);
    _tile_loadd(WEIGHTS_1, w + LANES, w_step * 4);
    if (both) _tile_loadd(INPUT_1, x + TILE_ROWS * x_row, x_row * 4);
    if (is_int8) ADD_WITH(_tile_dpbusd);
    else ADD_WITH(_tile_dpbf16ps);
}

// --- linear layers -----------------------------------------------------------------------------------------------------

// A lone group reads a stream of weights; several groups read them from a cache, and what comes next from memory.
ALWAYS void fetch_steps(const char *w, Next *next, i64 steps) {
    if (next->step == 0)
        for (i64 line = 0; line < steps * STEP_BYTES; line += 64) prefetch(w + AHEAD + line);
    const i64 bytes = next->step * steps;
    for (i64 line = 0; line < bytes; line += 64) prefetch_far(next->at + line);
    next->at += bytes;
}

// Steps of a tile, `each` of them at once, to sums that are in memory before where they are not the first.
ALWAYS void add_steps(const Tile *tile, i64 from, i64 end, i64 each, uint32_t *sums, int rows, const int both, const int is_int8) {
    if (from == end) return;
    Next next = {tile->next.at + from * tile->next.step, tile->next.step};
    shape_tiles(rows, (int)each);
    if (from > 0) load_sums(sums, PANEL, both);
    else if (tile->first) clear_sums(both);
    else load_sums(tile->sums, PANEL, both);
    for (i64 step = from; step < end; step += each) {
        fetch_steps(tile->w + step * STEP_BYTES, &next, each);
        add_tiles(tile->x + step * rows, each, tile->w + step * STEP_BYTES, PANEL, both, is_int8);
    }
    store_sums(sums, PANEL, both);
}

ALWAYS void tile_of(const Tile *tile, int rows, const int both, const int is_int8) {
    uint32_t room[ROWS * PANEL] __attribute__((aligned(64)));
    uint32_t *sums = tile->last ? room : tile->sums;
    const i64 rest = tile->steps % TILE_STEPS, whole = tile->steps - rest;
    add_steps(tile, 0, whole, TILE_STEPS, sums, rows, both, is_int8);
    add_steps(tile, whole, tile->steps, rest, sums, rows, both, is_int8);
    Tile row = *tile;
    for (int r = 0; tile->last && r < rows; r++, row.row++, row.scales++) {
        vi each[1][COLUMNS];
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) each[0][c] = load_words(sums + r * PANEL + c * LANES);
        if (is_int8) end_int8(&row, each, 1);
        else end_bf16(&row, (const vf(*)[COLUMNS])each, 1);
    }
}

// Registers hold the sums of one panel.
static i64 panels_together(i64 rows, i64 panels) {
    (void)rows, (void)panels;
    return 1;
}

static void tile_bf16(const Tile *tile, int rows) {
    if (rows > TILE_ROWS) tile_of(tile, rows, 1, 0);
    else tile_of(tile, rows, 0, 0);
}

static void tile_int8(const Tile *tile, int rows) {
    if (rows > TILE_ROWS) tile_of(tile, rows, 1, 1);
    else tile_of(tile, rows, 0, 1);
}
