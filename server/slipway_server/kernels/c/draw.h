// The sampling parameters of a row, as ../draws.py packs them; written by docs/generate.py from ../../sampling.py.
// An inverse temperature of 0 is greedy, and a top_k of 0 is all tokens.

#include <stddef.h>

typedef struct {
    uint64_t seed;
    float inverse_temperature;
    float top_p;
    int32_t top_k;
    float min_p;
} Draw;
_Static_assert(offsetof(Draw, seed) == 0, "seed");
_Static_assert(offsetof(Draw, inverse_temperature) == 8, "inverse_temperature");
_Static_assert(offsetof(Draw, top_p) == 12, "top_p");
_Static_assert(offsetof(Draw, top_k) == 16, "top_k");
_Static_assert(offsetof(Draw, min_p) == 20, "min_p");
_Static_assert(sizeof(Draw) == 24, "Draw");
