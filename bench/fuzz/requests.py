"""Requests by the server's own OpenAPI document: valid ones at the edges of every field, and mutations of them (pure).

A field is left out, drawn from its own schema, or replaced by something extreme, so that most requests reach the engine
with values that no person would choose, and the others try every refusal.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from .schema import strategy
from .values import Literal, encode, extreme

Json = dict[str, Any]
# One request in so many is large: what reads bodies must bound its work and its memory by more than their length.
LARGE_EVERY = 40
LARGE_BYTES = (100_000, 1 << 20, 8 << 20)  # the last is just beyond what the server takes, with the rest of the body
LARGE_PIECES = ("a", " ", "a ", "[", '"', "\\", "\n", "é", "🚢", "the way of ", "<|im_end|>", "{% a %}")
LONGEST_ANSWER = 24  # tokens: a fuzzer wants many requests, not long ones
TEXT = st.one_of(
    st.text(max_size=40), st.sampled_from(("And it came to pass", "漢字🚢漢字漢字", "a\u0000b", " " * 300))
)
ITEMS = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"role": st.sampled_from(("user", "developer", "assistant"))},
            optional={
                "content": st.one_of(
                    TEXT,
                    st.lists(
                        st.fixed_dictionaries(
                            {"type": st.sampled_from(("input_text", "refusal"))}, optional={"text": TEXT}
                        )
                    ),
                )
            },
        ),
        st.fixed_dictionaries(
            {"type": st.sampled_from(("function_call", "function_call_output", "reasoning", "item_reference"))},
            optional=dict.fromkeys(("call_id", "name", "arguments", "output", "summary", "content"), TEXT),
        ),
    ),
    min_size=1,
    max_size=4,
)
TOKEN_IDS = st.lists(st.integers(0, 255), min_size=1, max_size=30)
HEADERS: Mapping[str, st.SearchStrategy[str]] = {
    "X-Request-Id": st.sampled_from(
        ("a", "a" * 5000, "\x7f", "\xff\xfe", "a b", "../..", "00000000-0000-0000-0000-000000000000")
    ),
    "X-Session-Id": st.sampled_from(("s1", "s" * 5000, "\xe9", "", "request:x", "session:x")),
    "Authorization": st.sampled_from(
        ("Bearer k1", "Bearer " + "k" * 5000, "Basic eDp5", "Bearer", "bearer\tk", "Bearer \xff")
    ),
    "Last-Event-ID": st.sampled_from(
        (
            "x",
            "a.b.c",
            "rev.1-1-" + "0" * 32 + ".1.00000000",
            "rev.1-1-" + "0" * 32 + ".999999999.ffffffff.0000",
            "." * 800,
        )
    ),
    "X-Slipway-Tenant": st.sampled_from(("0" * 32, "zz", "0" * 5000, "\xff")),
    "X-Slipway-Resume": st.sampled_from(("1-1-" + "0" * 32 + ".1.00000000", "x", "1-1-" + "f" * 32 + ".99999999999.0")),
    "X-Slipway-Resume-Bytes": st.sampled_from(("0", "4", "-1", "99999999999999999999", "x", "1e3")),
    "X-Slipway-Resumable": st.sampled_from(("1", "0", "yes")),
    "X-Slipway-Returns": st.sampled_from(("1", "x")),
    "X-Slipway-Shadow": st.sampled_from(("1", "x")),
    "X-Slipway-Priority-Limit": st.sampled_from(("0", "-5000", "x", "9" * 40)),
    "Content-Type": st.sampled_from(
        ("application/json", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-7", "")
    ),
    "Content-Encoding": st.sampled_from(("gzip", "deflate", "br", "identity", "x")),
    "Accept-Encoding": st.sampled_from(("gzip", "br;q=0", "*", "x" * 3000)),
    "Accept": st.sampled_from(("text/event-stream", "application/json", "x/y;q=9")),
    "Expect": st.sampled_from(("100-continue", "200-ok")),
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and when its client leaves; `fields`: those of the body, for the count of what was covered."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    fields: tuple[str, ...] = ()
    leaves_after_s: float | None = None


@st.composite
def large(draw: st.DrawFn) -> Literal:
    """A JSON value of up to some megabytes, of few draws."""
    size, piece = draw(st.sampled_from(LARGE_BYTES)) - 400, json.dumps(draw(st.sampled_from(LARGE_PIECES)))
    items = {
        "texts": json.dumps("a" * 1000), "numbers": "7", "lists": "[]", "objects": '{"":0}', "pieces": piece,
        "messages": f'{{"role":"user","content":{piece}}}',
    }  # fmt: skip
    kind = draw(st.sampled_from(("text", "members", "deep", *items)))
    if kind == "text":
        return Literal(f'"{piece[1:-1] * (size // len(piece.encode()))}"')
    if kind == "members":
        return Literal("{" + ",".join(f'"{number:x}":1' for number in range(size // 10)) + "}")
    if kind == "deep":
        return Literal("[" * (size // 2) + "]" * (size // 2))
    return Literal("[" + ",".join([items[kind]] * (size // (len(items[kind].encode()) + 1))) + "]")


class Schemas:
    """The bodies of an OpenAPI document, with strategies for each of their fields."""

    def __init__(self, document: Json, model: str) -> None:
        self._schemas: Json = document["components"]["schemas"]
        self._model = model
        self.bodies = dict(_bodies(document))
        self._fields = {name: self._strategies(name) for name in set(self.bodies.values())}

    def fields(self) -> set[str]:
        """`BODY.FIELD` of all."""
        return {f"{name}.{field}" for name, fields in self._fields.items() for field in fields}

    def requests(self) -> st.SearchStrategy[Request]:
        return self._drawn()

    def _drawn(self) -> st.SearchStrategy[Request]:
        @st.composite
        def request(draw: st.DrawFn) -> Request:
            path, name = draw(st.sampled_from(sorted(self.bodies.items())))
            body = self._valid(draw, name)
            kind = draw(st.sampled_from(("valid", "valid", "mutated", "damaged")))
            if not draw(st.integers(0, LARGE_EVERY - 1)):
                kind, body[draw(st.sampled_from(self._names(name)))] = "large", draw(large())
            if kind == "mutated":
                for field in draw(st.lists(st.sampled_from(self._names(name)), min_size=1, max_size=3)):
                    body[field] = draw(extreme)
            text = encode(body)
            if kind == "damaged":
                at, noise = draw(st.integers(0, len(text))), draw(st.binary(min_size=1, max_size=4))
                text = text[:at] + noise + text[at + draw(st.integers(0, 4)) :]
            fields = () if kind == "damaged" else tuple(f"{name}.{field}" for field in body)
            leaves = draw(st.sampled_from((None, None, None, None, 0.0, 0.02, 0.3)))
            where = path.replace("{name}", self._model)
            return Request("POST", where, _headers(draw), text, fields, leaves)

        return request()

    def _valid(self, draw: st.DrawFn, name: str) -> Json:
        """A body that the schema takes, with few fields beside what it must have: many together are mostly refused."""
        body = {field: draw(strategy) for field, strategy in self._base(name).items()}
        optional = sorted(self._fields[name].keys() - body.keys())
        for field in draw(st.lists(st.sampled_from(optional), max_size=5, unique=True)) if optional else ():
            body[field] = draw(self._fields[name][field])
        return body

    def _names(self, name: str) -> list[str]:
        return sorted({*self._fields[name], "no_such_field"})

    def _base(self, name: str) -> dict[str, st.SearchStrategy[Any]]:
        """What makes a body one that the engine sees."""
        known = set(self._schemas[name]["properties"])
        texts = st.lists(TEXT.filter(bool), min_size=1, max_size=3)
        base: dict[str, st.SearchStrategy[Any]] = {
            "model": st.just(self._model),
            "prompt": st.one_of(TEXT.filter(bool), TOKEN_IDS),
            "messages": st.lists(
                st.fixed_dictionaries({"role": st.sampled_from(("user", "system", "assistant")), "content": TEXT}),
                min_size=1,
                max_size=3,
            ),
            "input": st.one_of(TEXT.filter(bool), ITEMS if "instructions" in known else texts),
            "inputs": texts,
            "max_tokens": st.integers(1, LONGEST_ANSWER),
            "max_output_tokens": st.integers(1, LONGEST_ANSWER),
            "stream": st.booleans(),
        }
        return {field: strategy for field, strategy in base.items() if field in known}

    def _strategies(self, name: str) -> dict[str, st.SearchStrategy[Any]]:
        properties: Json = self._schemas[name]["properties"]
        return {field: strategy(schema, self._schemas) for field, schema in properties.items()}


def _bodies(document: Json) -> Iterator[tuple[str, str]]:
    """Path and the name of its body's schema."""
    for path, methods in document["paths"].items():
        body = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        if reference := body.get("schema", {}).get("$ref"):
            yield path, reference.rpartition("/")[2]


def _headers(draw: st.DrawFn) -> tuple[tuple[str, str], ...]:
    if not draw(st.booleans()):
        return ()
    names = draw(st.lists(st.sampled_from(sorted(HEADERS)), max_size=3, unique=True))
    return tuple((name, draw(HEADERS[name])) for name in names)
