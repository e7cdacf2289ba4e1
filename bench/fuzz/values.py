"""JSON that breaks parsers: extreme numbers, texts, nesting; and an encoder that writes what `json` refuses (pure)."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

DEEP = 20_000


@dataclass(frozen=True, slots=True)
class Literal:
    """JSON text that is written as it is, whether it is JSON or not."""

    text: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """An object as pairs, so that a key may stand twice."""

    items: tuple[tuple[Any, Any], ...]


NUMBERS: tuple[Any, ...] = (
    *(
        0,
        -1,
        1,
        2,
        16,
        255,
        511,
        512,
        513,
        2**15,
        2**31 - 1,
        2**31,
        2**32,
        2**53,
        2**53 + 1,
        2**63 - 1,
        2**63,
        2**64,
        -(2**63) - 1,
    ),
    *(0.0, -0.0, 0.5, 1.0, 2.0, 1e-2, 1e-7, 1e-45, 5e-324, 1e-300, 3.4e38, 1.8e308, -1e308, 0.9999999999999999),
    *(
        Literal(text)
        for text in ("1e25", "10000000000000000000000000", "1e309", "-1e309", "NaN", "Infinity", "-Infinity")
    ),
    *(Literal(text) for text in ("9" * 5000, "0." + "0" * 5000 + "1", "1E+400", "-0", "00", "0x10", "1_000", "+1")),
)
TEXTS: tuple[Any, ...] = (
    *("", " ", "\u0000", "\ufeff", "\uffff", "\u202e", "a" * 70_000, "\n" * 5000, "漢字🚢" * 50, "e\u0301" * 100),
    *(
        "👩‍👩‍👧‍👦" * 20,
        "\U0010ffff",
        "<|endoftext|>",
        "<|im_start|>system",
        "</s>",
        "[INST]",
        "{{ 7*7 }}",
        "{% for i in range(10**9) %}",
    ),
    *("../../etc/passwd", "%00", "${jndi:ldap://x}", "'; DROP TABLE x;--", "__proto__", "constructor", "true", "null"),
    *(
        Literal('"\\ud800"'),
        Literal('"\\udfff\\ud800"'),
        Literal('"\\u0000"'),
        Literal('"\x01"'),
        Literal('"unfinished'),
    ),
)
SHAPES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [{}], {"": {}}, [None] * 3, {"a": None}, [0] * 5000, ["x"] * 5000),
    *(Literal("[" * DEEP + "]" * DEEP), Literal('{"a":' * DEEP + "1" + "}" * DEEP), Literal("[" * DEEP)),
    *({"9" * 5000: 1}, {str(number): -100 for number in range(2000)}, {"-1": 0}, {"1e3": 0}, {"5": Literal("NaN")}),
    *(Pairs((("model", "a"), ("model", "b"))), Literal("undefined"), Literal(""), Literal("/**/1")),
)

extreme = st.sampled_from((*NUMBERS, *TEXTS, *SHAPES))


def encode(value: Any) -> bytes:
    """JSON as it is written here; lone surrogates and control characters that are in texts come out as escapes."""
    return "".join(_pieces(value)).encode("utf-8", "surrogatepass")


def _pieces(value: Any) -> Iterable[str]:
    match value:
        case Literal(text):
            yield text
        case Pairs(items):
            yield from _object(items)
        case dict():
            yield from _object(tuple(value.items()))
        case list() | tuple():
            yield "["
            for place, item in enumerate(value):
                yield "," if place else ""
                yield from _pieces(item)
            yield "]"
        case _:
            yield json.dumps(value)


def _object(items: tuple[tuple[Any, Any], ...]) -> Iterable[str]:
    yield "{"
    for place, (name, item) in enumerate(items):
        yield "," if place else ""
        yield name.text if isinstance(name, Literal) else json.dumps(name)
        yield ":"
        yield from _pieces(item)
    yield "}"
