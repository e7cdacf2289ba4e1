// The decoder's kernels for CPUs: linear layers, paged attention, RMSNorm, rotary embedding with the write into the KV
// cache, and sampling; and all layers of a decoder, made of them. Called from native.py, one call at a time.
//
// Compiled once for each instruction set: build.py names them. All of them share this code; what differs are the
// vectors (avx512.h, avx2.h, neon.h) and the two inner products. bf16 values are uint16_t. Both matrices of a product
// are laid out in steps along the axis that is summed over: pairs of bf16, or fours of int8.
//
// Every number is summed in an order that its own row alone decides. So a row's results are the same bits in any batch.

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint16_t bf16;
typedef int64_t i64;

#define BLOCK 32 // tokens of a KV block
#define TILE 32  // rows (query tokens x heads of a group) of an attention tile
#define MAX_HEAD 256
#define UNROLLED _Pragma("GCC unroll 16") // loops over the rows of a micro kernel: their accumulators are registers
#define ALWAYS static inline __attribute__((always_inline))

#include "vectors.h"
#include "threads.h"
#include "low_rank.h"
#include "products.h"
#ifdef TILE_PRODUCTS
#include "tiles.h"
#endif
#include "linear.h"
#include "int4.h"
#include "weights.h"
#include "draw.h"
#include "sampling.h"
#include "pointwise.h"
#include "scores.h"
#include "attention.h"
#include "spread.h"
#include "decoder.h"
