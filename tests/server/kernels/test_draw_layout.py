"""The layout of a draw is one in torch, C and Triton, field by field."""

import ctypes
import importlib.util
import re

import numpy
import pytest

from slipway_server.kernels.draws import DRAW, LIKELIEST, Draws, draw_by
from slipway_server.kernels.triton import sampling
from slipway_server.kernels.triton.draw_rows import fields_of
from slipway_server.sampling import DRAW_FIELDS
from testkit import ROOT

pytestmark = pytest.mark.integration

HEADER = ROOT / "server" / "slipway_server" / "kernels" / "c" / "draw.h"
C_TYPES = {"uint64_t": ctypes.c_uint64, "int32_t": ctypes.c_int32, "float": ctypes.c_float}
RULES = {"top_p": 0.25, "top_k": 40, "min_p": 0.125}


def c_struct() -> type[ctypes.Structure]:
    """As a compiler lays out what the header has."""
    body = re.search(r"typedef struct \{(.*?)\} Draw;", HEADER.read_text(), re.DOTALL)
    assert body
    members = re.findall(r"(\w+) (\w+);", body[1])
    return type("Draw", (ctypes.Structure,), {"_fields_": [(name, C_TYPES[kind]) for kind, name in members]})


def test_torch_and_c_have_the_same_fields_at_the_same_places() -> None:
    struct = c_struct()
    assert [name for name, *_ in struct._fields_] == list(DRAW.names) == list(DRAW_FIELDS)
    for name, kind in struct._fields_:
        dtype, offset = DRAW.fields[name][:2]
        assert (offset, dtype.itemsize) == (getattr(struct, name).offset, ctypes.sizeof(kind)), name
    assert DRAW.itemsize == ctypes.sizeof(struct)


def test_c_reads_the_values_that_torch_packs() -> None:
    draw = c_struct().from_buffer_copy(draw_by(2**63 + 5, 0.5, **RULES))
    assert (draw.seed, draw.inverse_temperature) == (2**63 + 5, 2.0)
    assert {name: getattr(draw, name) for name in RULES} == RULES
    assert c_struct().from_buffer_copy(LIKELIEST).inverse_temperature == 0.0


def test_triton_reads_the_values_that_torch_packs() -> None:
    rows = [draw_by(2**63 + 5, 0.5, **RULES), LIKELIEST, draw_by(7, 1.0)]
    draws = Draws(rows, [2**33 + 3, 4, 5])
    words = fields_of(draws).reshape(len(rows), sampling.FIELDS.value)
    for name in DRAW_FIELDS:
        place, dtype = getattr(sampling, name.upper()).value, DRAW.fields[name][0]
        read = words[:, place : place + dtype.itemsize // 4].copy().view(dtype).reshape(-1)
        assert numpy.array_equal(read, draws.rows[name]), name
    place = sampling.POSITION.value
    assert words[:, place : place + 2].copy().view(numpy.int64).reshape(-1).tolist() == [2**33 + 3, 4, 5]
    assert sampling.FIELDS.value == place + 2


def test_a_rule_of_another_size_moves_torch_and_c_alike() -> None:
    """The header is made by ctypes, rows of draws by numpy: both align as a C compiler does."""
    spec = importlib.util.spec_from_file_location("draw_header", ROOT / "docs" / "draw_header.py")
    assert spec and spec.loader
    draw_header = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw_header)
    for more in ({"sharpness": "f4"}, {"sharpness": "u8"}, {"sharpness": "f4", "draws": "i4"}):
        fields = DRAW_FIELDS | more
        struct, dtype = draw_header.struct(fields), numpy.dtype(list(fields.items()), align=True)
        assert [getattr(struct, name).offset for name in fields] == [dtype.fields[name][1] for name in fields]
        assert ctypes.sizeof(struct) == dtype.itemsize


@pytest.mark.parametrize("rules", [{}, {"top_k": 2**40}])
def test_a_rule_that_is_not_given_removes_no_token_and_a_large_one_fits(rules: dict[str, float]) -> None:
    row = Draws([draw_by(-1, 1.0, **rules)], [0]).rows[0]
    assert (row["seed"], row["top_p"], row["min_p"]) == (2**64 - 1, 1.0, 0.0)
    assert row["top_k"] == (2**31 - 1 if rules else 0)
