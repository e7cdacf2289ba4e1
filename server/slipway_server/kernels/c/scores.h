// The two products of attention on a block of keys and values: scores of queries, and weighted sums of values.
//
// Queries and weights lie as the products take them: a word for each pair of bf16 (PAIR_PRODUCTS), or two floats.

#define TOKEN_VECTORS (BLOCK / LANES)
#define P_ROW (BLOCK / 2 * PAIR_WORDS) // words of a row of weights

#ifdef TILE_PRODUCTS
ALWAYS void fetch_ahead(const bf16 *ahead, i64 numbers) {
    for (i64 i = 0; i < numbers; i += 32) prefetch_far(ahead + i);
}

// S[r, 32] of `rows` rows against one block of keys. `ahead` is what will be read next.
ALWAYS void scores(const uint32_t *q, const bf16 *keys, const bf16 *ahead, float *s, i64 pairs, const int both) {
    clear_sums(both);
    for (i64 p = 0; p < pairs; p += TILE_STEPS) {
        fetch_ahead(ahead + p * 2 * BLOCK, TILE_STEPS * 2 * BLOCK);
        add_tiles(q + p, pairs, keys + p * 2 * BLOCK, BLOCK, both, 0);
    }
    store_sums(s, BLOCK, both);
}

static void all_scores(const uint32_t *q, const bf16 *keys, const bf16 *ahead, float *s, i64 pairs, int rows) {
    shape_tiles(rows, TILE_STEPS);
    if (rows > TILE_ROWS) scores(q, keys, ahead, s, pairs, 1);
    else scores(q, keys, ahead, s, pairs, 0);
}

// acc[r, size] += P[r, 32] V[32, size].
ALWAYS void weigh(const uint32_t *p, const bf16 *values, const bf16 *ahead, float *acc, i64 size, const int both) {
    for (i64 column = 0; column < size; column += 2 * LANES) {
        fetch_ahead(ahead + column * BLOCK, 2 * LANES * BLOCK);
        load_sums(acc + column, size, both);
        add_tiles(p, P_ROW, values + column * 2, size, both, 0);
        store_sums(acc + column, size, both);
    }
}

static void weigh_all(
    const uint32_t *p, const bf16 *values, const bf16 *ahead, float *acc, const float *factor, i64 size, int rows
) {
    for (i64 r = 0; r < rows; r++)
        for (i64 c = r * size; factor[r] != 1.0f && c < (r + 1) * size; c += LANES)
            store(acc + c, load(acc + c) * splat(factor[r]));
    shape_tiles(rows, TILE_STEPS);
    if (rows > TILE_ROWS) weigh(p, values, ahead, acc, size, 1);
    else weigh(p, values, ahead, acc, size, 0);
}
#else
#ifdef PAIR_PRODUCTS
// Sums that wait for their own last addend leave the units idle, so each is made of two halves; for many rows too, which
// would not need it: a token's attention is the same to the bit whoever is beside it.
#define CHAINS 2
#define SCORE_ROWS 6
#else
#define CHAINS 1
#define SCORE_ROWS (ACCUMULATORS / TOKEN_VECTORS > 6 ? 6 : ACCUMULATORS / TOKEN_VECTORS)
#endif

// S[r, 32] of `rows` rows against one block of keys. `ahead` is what will be read next: blocks lie anywhere in memory, and
// the processor's own prefetching does not follow.
ALWAYS void scores(const uint32_t *q, const bf16 *keys, const bf16 *ahead, float *s, i64 pairs, const int rows) {
    vf sums[SCORE_ROWS * CHAINS][TOKEN_VECTORS];
    UNROLLED
    for (int i = 0; i < rows * CHAINS; i++)
        UNROLLED
        for (int v = 0; v < TOKEN_VECTORS; v++) sums[i][v] = splat(0.0f);
    for (i64 p = 0; p < pairs; p += CHAINS) {
        UNROLLED
        for (int chain = 0; chain < CHAINS; chain++) {
            const i64 at = (p + chain) * 2 * BLOCK;
            prefetch_far(ahead + at);
            prefetch_far(ahead + at + BLOCK);
            vi each[TOKEN_VECTORS];
            UNROLLED
            for (int v = 0; v < TOKEN_VECTORS; v++) each[v] = load_words(keys + at + v * 2 * LANES);
#ifdef PAIR_PRODUCTS
            UNROLLED
            for (int r = 0; r < rows; r++) {
                vi pair = splat_word(q[r * pairs + p + chain]);
                UNROLLED
                for (int v = 0; v < TOKEN_VECTORS; v++)
                    sums[chain * rows + r][v] = add_pairs(sums[chain * rows + r][v], pair, each[v]);
            }
#else
            UNROLLED
            for (int odd = 0; odd < 2; odd++) {
                vf key[TOKEN_VECTORS];
                UNROLLED
                for (int v = 0; v < TOKEN_VECTORS; v++) key[v] = odd ? odd_of(each[v]) : even_of(each[v]);
                UNROLLED
                for (int r = 0; r < rows; r++) {
                    vf number = splat(((const float *)q)[(r * pairs + p) * 2 + odd]);
                    UNROLLED
                    for (int v = 0; v < TOKEN_VECTORS; v++) sums[r][v] = fma_of(number, key[v], sums[r][v]);
                }
            }
#endif
        }
    }
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int v = 0; v < TOKEN_VECTORS; v++)
            store(s + r * BLOCK + v * LANES, CHAINS == 2 ? sums[r][v] + sums[(CHAINS - 1) * rows + r][v] : sums[r][v]);
}

#ifdef PAIR_PRODUCTS
ALWAYS vf add_weighted(vf sum, const uint32_t *p, vi values) { return add_pairs(sum, splat_word(*p), values); }
#else
ALWAYS vf add_weighted(vf sum, const uint32_t *p, vi values) {
    const float *weights = (const float *)p;
    return fma_of(splat(weights[1]), odd_of(values), fma_of(splat(weights[0]), even_of(values), sum));
}
#endif

// acc[r, size] = acc[r, size] * factor[r] + P[r, 32] V[32, size], `vectors` times LANES columns at a time.
ALWAYS void weigh(
    const uint32_t *p, const bf16 *values, const bf16 *ahead, float *acc, const float *factor, i64 size, const int rows,
    const int vectors
) {
    for (i64 column = 0; column < size; column += vectors * LANES) {
        vf sums[ACCUMULATORS];
        UNROLLED
        for (int r = 0; r < rows; r++)
            UNROLLED
            for (int v = 0; v < vectors; v++)
                sums[r * vectors + v] = load(acc + r * size + column + v * LANES) * splat(factor[r]);
        for (int t = 0; t < BLOCK / 2; t++) {
            const i64 at = (t * size + column) * 2;
            UNROLLED
            for (int v = 0; v < vectors; v++) {
                if (v * LANES % 16 == 0) prefetch_far(ahead + at + v * 2 * LANES);
                vi value = load_words(values + at + v * 2 * LANES);
                UNROLLED
                for (int r = 0; r < rows; r++)
                    sums[r * vectors + v] = add_weighted(sums[r * vectors + v], p + (r * (BLOCK / 2) + t) * PAIR_WORDS, value);
            }
        }
        UNROLLED
        for (int r = 0; r < rows; r++)
            UNROLLED
            for (int v = 0; v < vectors; v++) store(acc + r * size + column + v * LANES, sums[r * vectors + v]);
    }
}

#define SCORES(rows) scores(q, keys, ahead, s, pairs, rows)

static void all_scores(const uint32_t *q, const bf16 *keys, const bf16 *ahead, float *s, i64 pairs, int rows) {
    for (; rows >= SCORE_ROWS; rows -= SCORE_ROWS, q += SCORE_ROWS * pairs * PAIR_WORDS, s += SCORE_ROWS * BLOCK)
        SCORES(SCORE_ROWS);
    switch (rows) {
#if SCORE_ROWS > 3
    case 5: SCORES(5); break;
    case 4: SCORES(4); break;
    case 3: SCORES(3); break;
#endif
    case 2: SCORES(2); break;
    case 1: SCORES(1); break;
    }
}

#define WEIGH(rows, vectors) weigh(p, values, ahead, acc, factor, size, rows, vectors)
// Few rows wait for memory, so they take whole rows of values, in the order in which those lie there. Many rows multiply.
static void weigh_all(
    const uint32_t *p, const bf16 *values, const bf16 *ahead, float *acc, const float *factor, i64 size, int rows
) {
    for (; rows >= 6; rows -= 6, p += 6 * P_ROW, acc += 6 * size, factor += 6) WEIGH(6, ACCUMULATORS / 6 > 2 && LANES < 16 ? 4 : 2);
    const int by_8 = size % (8 * LANES) == 0, by_4 = size % (4 * LANES) == 0;
    switch (rows) {
    case 5: WEIGH(5, 2); break;
    case 4: if (by_4 && ACCUMULATORS >= 16) WEIGH(4, ACCUMULATORS >= 16 ? 4 : 2); else WEIGH(4, 2); break;
    case 3: if (by_4) WEIGH(3, 4); else WEIGH(3, 2); break;
    case 2: if (by_8 && ACCUMULATORS >= 16) WEIGH(2, ACCUMULATORS >= 16 ? 8 : 2); else if (by_4) WEIGH(2, 4); else WEIGH(2, 2); break;
    case 1: if (by_8) WEIGH(1, 8); else WEIGH(1, 2); break;
    }
}
#endif
