"""The C struct of a draw, from the parameters that the server declares: server/slipway_server/kernels/c/draw.h."""

import ctypes

from slipway_server.sampling import DRAW_FIELDS

TYPES = {"u8": ("uint64_t", ctypes.c_uint64), "i4": ("int32_t", ctypes.c_int32), "f4": ("float", ctypes.c_float)}


def struct(fields: dict[str, str]) -> type[ctypes.Structure]:
    """The struct as the C compiler lays it out."""
    typed = [(name, TYPES[code][1]) for name, code in fields.items()]
    return type("Draw", (ctypes.Structure,), {"_fields_": typed})


def page() -> str:
    layout = struct(DRAW_FIELDS)
    members = "\n".join(f"    {TYPES[code][0]} {name};" for name, code in DRAW_FIELDS.items())
    checks = "\n".join(
        f'_Static_assert(offsetof(Draw, {name}) == {getattr(layout, name).offset}, "{name}");' for name in DRAW_FIELDS
    )
    return f"""\
// The sampling parameters of a row, as ../draws.py packs them; written by docs/generate.py from ../../sampling.py.
// An inverse temperature of 0 is greedy, and a top_k of 0 is all tokens.

#include <stddef.h>

typedef struct {{
{members}
}} Draw;
{checks}
_Static_assert(sizeof(Draw) == {ctypes.sizeof(layout)}, "Draw");
"""
