// Products with weights of 4 bits, in groups of inputs that have a scale and a zero point each:
//
//   y = sum over groups of  w_scale * x_scale * (q . x - w_zero * sum of x)
//
// Inputs become int8, with a scale for each row and group. A word of weights has eight inputs of a column: the lower
// halves of its bytes are the first four, the upper halves the next four. So weights are never wider than bytes, in
// registers. All but the last step of a group's sum is in whole numbers.

#define UNIT 32             // inputs whose sums fit into int16: 8 pairs of products, each of at most 2 * 15 * 127
#define UNIT_WORDS (UNIT / 8)

#ifdef HALF_SUMS
#define INT4_ROWS 4 // input rows of a micro kernel
#elif LANES == 16
#define INT4_ROWS 8
#else
#define INT4_ROWS 4
#endif

static i64 most_rows(const Linear *job) { return job->group ? INT4_ROWS : ROWS; }
ALWAYS i64 weight_groups(const Linear *job) { return job->k / job->group; }

// --- the input ---------------------------------------------------------------------------------------------------------
// For a group of rows: word after word (four inputs) of each row; and of each group of inputs the scales of the rows,
// then the sums of their whole numbers.

// `room`: for job->group numbers.
ALWAYS void pack_inputs(const bf16 *x, i64 count, int8_t *room, float *scale, float *sum) {
    const float top = largest_magnitude(x, count), inverse = top > 0 ? 127.0f / top : 0.0f;
    vi whole = {0};
    for (i64 i = 0; i < count; i += LANES) {
        const vi numbers = rounded(load_bf16(x + i) * splat(inverse));
        store_bytes(room + i, numbers);
        whole += numbers;
    }
    *scale = top / 127.0f, *sum = (float)whole_sum_of(whole);
}

static void pack_int4_part(const Linear *job, i64 part) {
    const i64 first = first_row(job, part), rows = first_row(job, part + 1) - first, groups = weight_groups(job);
    uint32_t *to = packed.words + first * (job->k / 4);
    float *about = packed.scales + first * 2 * groups;
    int8_t room[MOST_GROUP];
    for (i64 r = 0; r < rows; r++)
        for (i64 group = 0; group < groups; group++) {
            float *here = about + group * 2 * rows + r;
            pack_inputs(job->x + (first + r) * job->k + group * job->group, job->group, room, here, here + rows);
            uint32_t *words = to + group * (job->group / 4) * rows + r;
            for (i64 word = 0; word < job->group / 4; word++) memcpy(words + word * rows, room + 4 * word, 4);
        }
}

// --- the output --------------------------------------------------------------------------------------------------------

#ifdef HALF_SUMS
#define add_unit add_halves
#define unit_sum widened_halves
#else
ALWAYS vi add_unit(vi sum, vi w, vi x) { return add_fours(sum, w, x); }
ALWAYS vi unit_sum(vi sum) { return sum; }
#endif

// Few rows have two sums each: an addition waits for the one before it. They are whole numbers, so that their order
// changes nothing.
ALWAYS void add_word(vi sums[][COLUMNS], const char *w, const uint32_t *x, const int rows, const int apart) {
    vi lower[COLUMNS], upper[COLUMNS];
    UNROLLED
    for (int c = 0; c < COLUMNS; c++) {
        const vi word = load_words(w + c * LANES * 4);
        lower[c] = word & 0x0f0f0f0f, upper[c] = (word >> 4) & 0x0f0f0f0f;
    }
    UNROLLED
    for (int r = 0; r < rows; r++) {
        const vi first = splat_word(x[r]), next = splat_word(x[rows + r]);
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) {
            sums[r][c] = add_unit(sums[r][c], lower[c], first);
            sums[apart + r][c] = add_unit(sums[apart + r][c], upper[c], next);
        }
    }
}

// The whole sums of a group of inputs.
ALWAYS void sum_group(vi whole[][COLUMNS], const char *w, const uint32_t *x, i64 units, const int rows) {
    const int apart = rows <= 2 ? rows : 0;
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) whole[r][c] = (vi){0};
    for (i64 unit = 0; unit < units; unit++, w += UNIT_WORDS * STEP_BYTES, x += UNIT / 4 * rows) {
        vi sums[2 * INT4_ROWS][COLUMNS] = {{{0}}};
        for (int line = 0; line < UNIT_WORDS * STEP_BYTES; line += 64) prefetch(w + AHEAD + line);
        UNROLLED
        for (int word = 0; word < UNIT_WORDS; word++)
            add_word(sums, w + word * STEP_BYTES, x + word * 2 * rows, rows, apart);
        UNROLLED
        for (int r = 0; r < rows; r++)
            UNROLLED
            for (int c = 0; c < COLUMNS; c++) {
                whole[r][c] += unit_sum(sums[r][c]);
                if (apart) whole[r][c] += unit_sum(sums[apart + r][c]);
            }
    }
}

typedef uint8_t octets_anywhere __attribute__((vector_size(LANES), aligned(1), may_alias));

ALWAYS vf load_octets(const uint8_t *from) { return __builtin_convertvector(*(const octets_anywhere *)from, vf); }

// `rows` is a constant where this is inlined.
ALWAYS void micro_int4(const Linear *job, i64 row, i64 panel, const int rows) {
    const i64 groups = weight_groups(job), group_bytes = job->group / 8 * STEP_BYTES;
    const char *w = (const char *)job->w + panel * groups * group_bytes;
    const float *scales = job->w_scale + panel * groups * PANEL, *about = packed.scales + row * 2 * groups;
    const uint8_t *zeros = job->w_zero + panel * groups * PANEL;
    const uint32_t *x = packed.words + row * (job->k / 4);
    vf sums[INT4_ROWS][COLUMNS] = {{{0}}};
    for (i64 group = 0; group < groups; group++) {
        vi whole[INT4_ROWS][COLUMNS];
        sum_group(whole, w, x, job->group / UNIT, rows);
        UNROLLED
        for (int c = 0; c < COLUMNS; c++) {
            const vf scale = load(scales + c * LANES), zero = load_octets(zeros + c * LANES);
            UNROLLED
            for (int r = 0; r < rows; r++) {
                // Both products and their difference are whole numbers below 2^24: exact.
                const vf product = to_float(whole[r][c]) - zero * splat(about[rows + r]);
                sums[r][c] = fma_of(product, scale * splat(about[r]), sums[r][c]);
            }
        }
        w += group_bytes, scales += PANEL, zeros += PANEL, about += 2 * rows, x += job->group / 4 * rows;
    }
    UNROLLED
    for (int r = 0; r < rows; r++) finish(job, row + r, panel * PANEL, sums[r]);
}

static void micro_int4_of(const Linear *job, i64 row, i64 panel, i64 rows) {
    switch (rows) {
    case 1: micro_int4(job, row, panel, 1); break;
    case 2: micro_int4(job, row, panel, 2); break;
    case 3: micro_int4(job, row, panel, 3); break;
#if INT4_ROWS == 8
    case 4: micro_int4(job, row, panel, 4); break;
    case 5: micro_int4(job, row, panel, 5); break;
    case 6: micro_int4(job, row, panel, 6); break;
    case 7: micro_int4(job, row, panel, 7); break;
#endif
    default: micro_int4(job, row, panel, INT4_ROWS); break;
    }
}

// A strip of panels with a chunk of rows: a panel's weights are read from memory for the first group of rows, then from a cache.
static void int4_part(void *given, i64 part) {
    const Plan *plan = given;
    const Linear *job = plan->job;
    const Share share = share_of(plan, part);
    for (i64 panel = share.panel; panel < share.end_panel; panel++) {
        if (plan->groups == 1 && job->adapters.slots) fetch_expansion(&job->adapters, job->m, panel * PANEL, job->after >= SILU_GATED);
        for (i64 group = share.group; group < share.end_group; group++) {
            const i64 row = first_row(job, group);
            micro_int4_of(job, row, panel, first_row(job, group + 1) - row);
        }
    }
}
