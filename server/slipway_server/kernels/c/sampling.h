// One token for each row of logits: the likeliest, or one drawn by its probability; and tokens that may not be it.
//
// A draw is an exponential race, the largest of mass / noise: first between stretches of the vocabulary, then between
// groups of the winner, then between the tokens of a group. Noise is a function of seed, position and place alone. A
// stretch's mass is computed only where it could win with all its tokens as likely as its likeliest one, so that most of
// the vocabulary costs a comparison, as for a greedy row. ../draws.py does the same in torch.
//
// top_p is kept by drawing again: a token is drawn from all, and if those before it hold more than top_p already, the
// next one is drawn from those before it. What is accepted has exactly its share among the tokens that top_p leaves.

#define STRETCH 1024 // tokens
#define GROUP 32
#define GATHERED 4096 // numbers that the top_k are looked for among, where these suffice

typedef struct {
    const float *x; // [m, n], rows `stride` numbers apart
    const Draw *draws;
    const uint64_t *positions; // of the tokens in their answers
    float *room;     // [m, room_each], which is 18 floats for each stretch and 32 more
    int64_t *ids;    // [m], out; -1 where no token has a number above minus infinity
    uint8_t *finite; // [m], out: whether all are
    i64 m, n, stride, room_each;
} Sample;

typedef struct {
    const float *x;
    const Draw *draw;
    uint64_t position;
    float *most, *scores; // of each stretch
    float *parts;         // largest numbers of the lanes of each stretch
    i64 n, stretches;
    float top;
} Row;

// The tokens before this one, likeliest first and equal ones by their ids.
typedef struct {
    float value;
    i64 id;
} Bound;

static const Bound all_tokens = {-INFINITY, 0};

ALWAYS i64 end_of(const Row *row, i64 first, i64 count) { return first + count < row->n ? first + count : row->n; }

// Up to the end of the part, and minus infinity after it.
ALWAYS vf numbers(const Row *row, i64 i, i64 end) {
    return within(0, end - i, load_some(row->x + i, end - i), splat(-INFINITY));
}

// Finds the largest number of each stretch. Returns whether all are finite.
static int survey(Row *row) {
    vi odd = {0};
    row->top = -INFINITY;
    for (i64 s = 0; s < row->stretches; s++) {
        const i64 first = s * STRETCH, end = end_of(row, first, STRETCH);
        vf most = splat(-INFINITY);
        for (i64 i = first; i < end; i += LANES) {
            vf v = load_some(row->x + i, end - i);
            odd |= ((vi)v & 0x7f800000) == 0x7f800000;
            v = within(0, end - i, v, splat(-INFINITY));
            most = pick(v > most, v, most);
        }
        store(row->parts + s * LANES, most);
        row->most[s] = largest_of(most);
        row->top = row->most[s] > row->top ? row->most[s] : row->top;
    }
    return whole_sum_of(odd) == 0;
}

// The first token with this number, after so many others with it.
static i64 token_with(const Row *row, float value, i64 others) {
    for (i64 s = 0; s < row->stretches; s++) {
        if (row->most[s] < value) continue;
        const i64 end = end_of(row, s * STRETCH, STRETCH);
        for (i64 i = s * STRETCH; i < end; i += LANES) {
            const vf v = numbers(row, i, end);
            for (uint32_t lanes = lanes_of(v == splat(value)); lanes; lanes &= lanes - 1)
                if (others-- == 0) return i + __builtin_ctz(lanes);
        }
    }
    return 0;
}

// --- noise: Philox4x32-10 ----------------------------------------------------------------------------------------------

ALWAYS void philox(const Row *row, uint32_t index, uint32_t kind, uint32_t words[4]) {
    uint32_t key[2] = {(uint32_t)row->draw->seed, (uint32_t)(row->draw->seed >> 32)};
    uint32_t c[4] = {index, kind, (uint32_t)row->position, (uint32_t)(row->position >> 32)};
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53 * c[0], b = (uint64_t)0xCD9E8D57 * c[2];
        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ key[0], c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ key[1], c[3] = (uint32_t)a;
        key[0] += 0x9E3779B9, key[1] += 0xBB67AE85;
    }
    memcpy(words, c, sizeof c);
}

enum { STRETCHES, GROUPS, TOKENS }; // that race

// masses[i] becomes that of place first + i divided by its noise; `first` is a multiple of four.
static void run_race(const Row *row, float *masses, i64 first, i64 count, int level, uint32_t round) {
    uint32_t words[4];
    for (i64 i = 0; i < count; i += 4) {
        float any = 0;
        for (i64 j = i; j < i + 4 && j < count; j++) any = masses[j] > any ? masses[j] : any;
        if (!(any > 0)) continue;
        philox(row, (uint32_t)((first + i) / 4), (uint32_t)level | round << 2, words);
        for (i64 j = i; j < i + 4 && j < count; j++)
            masses[j] = (float)(masses[j] / -log(((double)words[j - i] + 0.5) * 0x1p-32));
    }
}

static i64 winner(const float *scores, i64 count) {
    i64 best = 0;
    for (i64 i = 1; i < count; i++)
        if (scores[i] > scores[best]) best = i;
    return best;
}

// --- probabilities -----------------------------------------------------------------------------------------------------

ALWAYS vf weights_of(const Row *row, vf v) { return exp_of((v - splat(row->top)) * splat(row->draw->inverse_temperature)); }

// Weights of the tokens from `at` that are before the bound, zeros for others.
ALWAYS vf kept(vf v, vf weights, i64 at, Bound bound) {
    vf sure = pick(v > splat(bound.value), weights, splat(0.0f));
    if (bound.id <= at) return sure;
    return sure + within(0, bound.id - at, pick(v == splat(bound.value), weights, splat(0.0f)), splat(0.0f));
}

static float mass_of(const Row *row, i64 first, i64 end, Bound bound) {
    vf sum = splat(0.0f);
    for (i64 i = first; i < end; i += LANES) {
        vf v = numbers(row, i, end);
        sum += kept(v, weights_of(row, v), i, bound);
    }
    return sum_of(sum);
}

// What a stretch would have if all its tokens were as likely as its likeliest one; nothing without one before the bound.
static void bounding_masses(const Row *row, Bound bound) {
    for (i64 s = 0; s < row->stretches; s += LANES) {
        const vf most = load(row->most + s), mass = weights_of(row, most) * splat(STRETCH);
        store(row->scores + s, pick((most >= splat(bound.value)) & (most > splat(-INFINITY)), mass, splat(0.0f)));
    }
}

// Whether the tokens before `here` hold top_p at most of what all before `whole` have. It ends as soon as that is sure,
// whatever the stretches have that it has not seen.
static int within_top_p(const Row *row, Bound whole, Bound here) {
    const double share = row->draw->top_p;
    double before = 0, after = 0, unseen = 0;
    bounding_masses(row, whole);
    for (i64 s = 0; s < row->stretches; s++) unseen += row->scores[s];
    for (i64 s = 0; s < row->stretches; s++) {
        if (row->scores[s] == 0) continue;
        unseen -= row->scores[s];
        const i64 first = s * STRETCH, end = end_of(row, first, STRETCH);
        vf all = splat(0.0f), some = splat(0.0f);
        for (i64 i = first; i < end; i += LANES) {
            const vf v = numbers(row, i, end), weights = weights_of(row, v);
            all += kept(v, weights, i, whole);
            some += kept(v, weights, i, here);
        }
        const double mine = sum_of(some);
        before += mine, after += (double)sum_of(all) - mine;
        if ((1 - share) * (before + unseen) <= share * after) return 1;
        if ((1 - share) * before > share * (after + unseen)) return 0;
    }
    return (1 - share) * before <= share * after;
}

// --- top_k -------------------------------------------------------------------------------------------------------------

static i64 count_above(const float *x, i64 n, float value) {
    vi count = {0};
    for (i64 i = 0; i < n; i += LANES)
        count -= (vi)within(0, n - i, (vf)(load_some(x + i, n - i) > splat(value)), splat(0.0f));
    return whole_sum_of(count);
}

static float largest_up_to(const float *x, i64 n, float value) {
    vf most = splat(-INFINITY);
    for (i64 i = 0; i < n; i += LANES) {
        const vf v = within(0, n - i, load_some(x + i, n - i), splat(-INFINITY));
        most = pick((v <= splat(value)) & (v > most), v, most);
    }
    return largest_of(most);
}

// Floats as whole numbers in the same order, and back.
ALWAYS i64 order_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    return bits ^ (bits >> 31 & 0x7fffffff);
}

ALWAYS float float_of(i64 order) {
    int32_t bits = (int32_t)order;
    bits ^= bits >> 31 & 0x7fffffff;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

// Minus infinity where fewer than k are larger.
static float kth_largest(const float *x, i64 n, i64 k, float top) {
    i64 low = order_of(-INFINITY), high = order_of(top);
    if (count_above(x, n, -INFINITY) < k) return -INFINITY;
    while (high - low > 1) {
        const i64 middle = low + (high - low) / 2;
        const i64 above = count_above(x, n, float_of(middle));
        if (above == k - 1) return largest_up_to(x, n, float_of(middle));
        if (above < k) high = middle;
        else low = middle;
    }
    return float_of(high);
}

// Copies what is at least this large. Returns how many, or -1 when there is no room.
static i64 gather(const Row *row, float least, float *to) {
    i64 count = 0;
    for (i64 s = 0; s < row->stretches; s++) {
        if (row->most[s] < least) continue;
        const i64 first = s * STRETCH, end = end_of(row, first, STRETCH);
        for (i64 i = first; i < end; i += LANES) {
            for (uint32_t lanes = lanes_of(numbers(row, i, end) >= splat(least)); lanes; lanes &= lanes - 1) {
                if (count == GATHERED) return -1;
                to[count++] = row->x[i + __builtin_ctz(lanes)];
            }
        }
    }
    return count;
}

static Bound bound_of_top_k(const Row *row) {
    const i64 k = row->draw->top_k;
    if (k == 0 || k >= row->n) return all_tokens;
    float room[GATHERED];
    i64 count = -1;
    // Each lane of a stretch has a token with its largest number: k tokens are at least as large as the k-th of these.
    if (k <= row->stretches * LANES) {
        const float least = kth_largest(row->parts, row->stretches * LANES, k, row->top);
        if (least > -INFINITY) count = gather(row, least, room);
    }
    const float *among = count < 0 ? row->x : room;
    count = count < 0 ? row->n : count;
    const float value = kth_largest(among, count, k, row->top);
    if (value == -INFINITY) return all_tokens;
    return (Bound){value, token_with(row, value, k - count_above(among, count, value) - 1) + 1};
}

// --- a row -------------------------------------------------------------------------------------------------------------

// A stretch with tokens before the bound, by its share of their probabilities.
static i64 drawn_stretch(const Row *row, Bound bound, uint32_t round) {
    bounding_masses(row, bound);
    run_race(row, row->scores, 0, row->stretches, STRETCHES, round);
    // What those have that could win.
    const i64 likely = winner(row->scores, row->stretches);
    float most = 0.0f;
    i64 best = likely;
    for (i64 at = -1; at < row->stretches; at++) {
        const i64 s = at < 0 ? likely : at;
        if (at == likely || !(row->scores[s] > most)) continue;
        const float room = weights_of(row, splat(row->most[s]))[0] * STRETCH;
        const float score = row->scores[s] / room * mass_of(row, s * STRETCH, end_of(row, s * STRETCH, STRETCH), bound);
        if (score > most) most = score, best = s;
    }
    return best;
}

// A token before the bound, by its share of their probabilities.
static i64 drawn(const Row *row, Bound bound, uint32_t round) {
    const i64 first = drawn_stretch(row, bound, round) * STRETCH, end = end_of(row, first, STRETCH);
    const i64 groups = (end - first + GROUP - 1) / GROUP;
    float masses[STRETCH / GROUP];
    for (i64 g = 0; g < groups; g++)
        masses[g] = mass_of(row, first + g * GROUP, end_of(row, first + g * GROUP, GROUP), bound);
    run_race(row, masses, first / GROUP, groups, GROUPS, round);
    const i64 group = first + winner(masses, groups) * GROUP, last = end_of(row, group, GROUP);
    for (i64 i = group; i < last; i += LANES) {
        const vf v = numbers(row, i, last);
        store(masses + (i - group), kept(v, weights_of(row, v), i, bound));
    }
    run_race(row, masses, group, last - group, TOKENS, round);
    return group + winner(masses, last - group);
}

static i64 sampled(const Row *row) {
    const Draw *draw = row->draw;
    const i64 first = token_with(row, row->top, 0);
    if (draw->inverse_temperature == 0.0f || !(row->top < INFINITY)) return first;
    const Bound whole = bound_of_top_k(row);
    Bound bound = whole;
    if (draw->min_p > 0.0f) {
        const float least = row->top + logf(draw->min_p) / draw->inverse_temperature;
        if (least > bound.value) bound = (Bound){least, row->n};
    }
    for (uint32_t round = 0;; round++) {
        const i64 id = drawn(row, bound, round);
        if (draw->top_p >= 1.0f || id == first) return id;
        bound = (Bound){row->x[id], id};
        if (within_top_p(row, whole, bound)) return id;
    }
}

static void sample_part(void *given, i64 part) {
    const Sample *job = given;
    const i64 stretches = (job->n + STRETCH - 1) / STRETCH, width = (stretches + LANES - 1) / LANES * LANES;
    Row row = {.x = job->x + part * job->stride, .n = job->n, .stretches = stretches};
    row.draw = job->draws + part, row.position = job->positions[part];
    row.most = job->room + part * job->room_each, row.scores = row.most + width, row.parts = row.scores + width;
    for (i64 s = stretches; s < width; s++) row.most[s] = -INFINITY;
    job->finite[part] = (uint8_t)survey(&row);
    job->ids[part] = row.top == -INFINITY ? -1 : sampled(&row);
}

void slipway_sample(const Sample *job) { run(sample_part, (void *)job, job->m); }

// --- tokens that are not allowed ---------------------------------------------------------------------------------------

typedef struct {
    float *x;             // rows `stride` numbers apart
    const int64_t *rows;  // [m], of x
    const uint32_t *bits; // rows of `words` words, one bit for each token
    const int64_t *which; // [m], of bits
    uint8_t *finite;      // [m], out: whether all numbers were, before
    i64 m, n, stride, words;
} Mask;

static void mask_part(void *given, i64 part) {
    const Mask *job = given;
    float *x = job->x + job->rows[part] * job->stride;
    const uint32_t *bits = job->bits + job->which[part] * job->words;
    vi odd = {0}, bit;
    for (int lane = 0; lane < LANES; lane++) bit[lane] = 1 << lane;
    for (i64 i = 0; i < job->n; i += LANES) {
        const vf v = load_some(x + i, job->n - i);
        odd |= ((vi)v & 0x7f800000) == 0x7f800000;
        const vf masked = pick((splat_word(bits[i / 32] >> i % 32) & bit) != 0, v, splat(-INFINITY));
        if (job->n - i >= LANES) store(x + i, masked);
        else
            for (i64 j = i; j < job->n; j++) x[j] = masked[j - i];
    }
    job->finite[part] = whole_sum_of(odd) == 0;
}

void slipway_mask(const Mask *job) { run(mask_part, (void *)job, job->m); }
