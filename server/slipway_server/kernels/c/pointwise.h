// RMSNorm, and rotary embedding with the write into the cache.

#define ROW_CHUNK 8 // rows of one part

typedef struct {
    const bf16 *x;
    const float *weight;
    bf16 *y;
    i64 m, k;
    float epsilon;
} Norm;

ALWAYS float inverse_rms(const bf16 *x, i64 k, float epsilon) {
    vf sum = splat(0.0f);
    for (i64 i = 0; i < k; i += LANES) {
        vf v = load_bf16(x + i);
        sum = fma_of(v, v, sum);
    }
    return 1.0f / sqrtf(sum_of(sum) / (float)k + epsilon);
}

ALWAYS void normalize(const bf16 *x, const float *weight, bf16 *y, i64 k, float epsilon) {
    vf inverse = splat(inverse_rms(x, k, epsilon));
    for (i64 i = 0; i < k; i += LANES) store_bf16(y + i, load_bf16(x + i) * inverse * load(weight + i));
}

static void norm_part(void *given, i64 part) {
    const Norm *job = given;
    i64 last = (part + 1) * ROW_CHUNK < job->m ? (part + 1) * ROW_CHUNK : job->m;
    for (i64 row = part * ROW_CHUNK; row < last; row++)
        normalize(job->x + row * job->k, job->weight, job->y + row * job->k, job->k, job->epsilon);
}

void slipway_norm(const Norm *job) { run(norm_part, (void *)job, (job->m + ROW_CHUNK - 1) / ROW_CHUNK); }

// --- rotary embedding, and the write into the cache --------------------------------------------------------------------
// Keys of a block: [kv head, size/2, 32 tokens, 2]; values: [kv head, 32/2, size, 2]. In int8 they lie alike, with one
// float for each token and head beside them ([kv head, 32 tokens]) that all numbers of its key, or value, are times of.

typedef struct {
    const bf16 *qkv;           // [tokens, (heads + 2*kv_heads) * size]
    const float *q_norm, *k_norm; // [size] or NULL
    const float *cos, *sin;    // [positions, rotary/2]
    const int32_t *positions;  // [tokens]
    const int32_t *slot_mapping;     // [tokens]: block * 32 + offset in the block
    bf16 *q;                   // out: [tokens, heads, size]
    void *keys, *values;       // of this layer: bf16, or int8 where there are scales
    float *key_scales, *value_scales; // or NULL
    i64 tokens, heads, kv_heads, size, rotary;
    float epsilon;
} Rope;

ALWAYS void rotate(bf16 *x, const float *cos, const float *sin, i64 half) {
    for (i64 i = 0; i < half; i += LANES) {
        const i64 count = half - i;
        vf c = load_some(cos + i, count), s = load_some(sin + i, count);
        vf a = load_some_bf16(x + i, count), b = load_some_bf16(x + half + i, count);
        store_some_bf16(x + i, fma_of(a, c, -(b * s)), count);
        store_some_bf16(x + half + i, fma_of(b, c, a * s), count);
    }
}

ALWAYS void turned(const Rope *job, const bf16 *from, const float *norm, i64 token, bf16 *to) {
    if (norm) normalize(from, norm, to, job->size, job->epsilon);
    else memcpy(to, from, (size_t)job->size * sizeof(bf16));
    i64 half = job->rotary / 2, at = job->positions[token] * half;
    if (half) rotate(to, job->cos + at, job->sin + at, half);
}

// To whole numbers from -127 to 127; returns their scale. They hide what is not finite: the scale says it for all of them.
static float to_int8(const bf16 *x, int8_t *whole, i64 size) {
    int none;
    float top = largest_number(x, size, &none);
    if (none) top = NAN;
    const vf inverse = splat(top > 0 ? 127.0f / top : 0.0f);
    for (i64 i = 0; i < size; i += LANES) store_bytes(whole + i, rounded(load_bf16(x + i) * inverse));
    return top / 127.0f;
}

// One token's key and value of one head into its tile, the block's numbers of that head.
static void keep(const Rope *job, i64 tile, i64 offset, const uint32_t *pairs, const bf16 *from) {
    const i64 size = job->size;
    uint32_t *key = (uint32_t *)((bf16 *)job->keys + tile * BLOCK * size) + offset;
    for (i64 i = 0; i < size / 2; i++) key[i * BLOCK] = pairs[i];
    bf16 *value = (bf16 *)job->values + tile * BLOCK * size + offset / 2 * 2 * size + offset % 2;
    for (i64 i = 0; i < size; i += LANES) spread(value + i * 2, from + i);
}

static void keep_int8(const Rope *job, i64 tile, i64 offset, const uint32_t *pairs, const bf16 *from) {
    const i64 size = job->size;
    int8_t whole[MAX_HEAD];
    job->key_scales[tile * BLOCK + offset] = to_int8((const bf16 *)pairs, whole, size);
    int8_t *key = (int8_t *)job->keys + tile * BLOCK * size + offset * 2;
    for (i64 i = 0; i < size / 2; i++) memcpy(key + i * BLOCK * 2, whole + i * 2, 2);
    job->value_scales[tile * BLOCK + offset] = to_int8(from, whole, size);
    int8_t *value = (int8_t *)job->values + tile * BLOCK * size + offset / 2 * 2 * size + offset % 2;
    for (i64 i = 0; i < size; i++) value[i * 2] = whole[i];
}

static void rope_part(void *given, i64 part) {
    const Rope *job = given;
    i64 size = job->size, width = (job->heads + 2 * job->kv_heads) * size;
    const i64 first = part * ROW_CHUNK, last = first + ROW_CHUNK < job->tokens ? first + ROW_CHUNK : job->tokens;
    uint32_t pairs[MAX_HEAD / 2];
    for (i64 token = first; token < last; token++) {
        const bf16 *row = job->qkv + token * width;
        for (i64 h = 0; h < job->heads; h++)
            turned(job, row + h * size, job->q_norm, token, job->q + (token * job->heads + h) * size);
    }
    // Head by head: a block's numbers of one head lie together.
    for (i64 h = 0; h < job->kv_heads; h++)
        for (i64 token = first; token < last; token++) {
            const bf16 *row = job->qkv + token * width + (job->heads + h) * size;
            const i64 block = job->slot_mapping[token] / BLOCK, offset = job->slot_mapping[token] % BLOCK;
            turned(job, row, job->k_norm, token, (bf16 *)pairs);
            (job->key_scales ? keep_int8 : keep)(job, block * job->kv_heads + h, offset, pairs, row + job->kv_heads * size);
        }
}

void slipway_rope(const Rope *job) { run(rope_part, (void *)job, (job->tokens + ROW_CHUNK - 1) / ROW_CHUNK); }
