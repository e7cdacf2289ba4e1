"""Bodies of requests: ordinary ones, and all that a stranger may put into each field."""

import json
from random import Random
from typing import Any

from hypothesis import strategies as st

from slipway_gateway.wire.request_fields import RequestFields
from tests.plane.mutation import varying

FIELDS = tuple(RequestFields.__struct_fields__)
TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["m", "auto", "none", "required", "json_object", "json_schema", "text", "1", "3.0", "1_0", "true"]),
    st.sampled_from(["a" * 1030, "\u00e9" * 2000, "a" * 5000, 'quote"', "back\\slash", "\x7f\u2028\U0001f600"]),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 40),
    st.sampled_from([10**18, 10**19, 10**20, -(10**18), 2**31, 2**63, 1e300, 1.5, 3.0, -0.0]),
    TEXTS,
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["type", "format", "mode", "allowed_tools", "include_usage", "id", "version", "strict"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
# Spellings that no encoder writes: they are put in place of a value.
ODD_VALUES = (
    *(b"1e5", b"1E+2", b"-0", b"01", b"1.", b".5", b"NaN", b"Infinity", b"-", b"[", b"{", b'"', b"[ ]", b"{ }", b"[]"),
    *(b'"\\u0041"', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\\x"', b'"\xff"', b"nul", b"tru", b'"\t"', b"[1,2,3]"),
    *(
        b'["a","b"]',
        b"[[1],[2]]",
        b'"\\a"',
        b'"1_000"',
        b'" 3 "',
        b'"+3"',
        b'"0x10"',
        b'"inf"',
        b"99999999999999999999",
    ),
    *(b'{"type":"json_object","type":1}', b'{"t\\u0079pe":"json_schema"}', b'{"include_usage":true }', b"[" * 200),
    *(b'[{"type":"function","function":{"strict":true}}]', b'{"include_usage":false,"a":1}', b"1e999", b'"3.0"'),
)
TOKENS = (
    *ODD_VALUES,
    *(f'"{name}":'.encode() for name in FIELDS),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"\\",
        b" ",
        b"\n",
        b"\x0b",
        b"\xef\xbb\xbf",
        b"\\u0022",
        b'"mo\\u0064el":',
    ),
    *(b'"model":"x",', b'"user":"u",', b'"strict"', b"null", b"true", b"0"),
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A body with some of the fields, in one of the ways in which JSON is written."""
    names = draw(st.lists(st.sampled_from(FIELDS), max_size=6))
    members = [(name, draw(VALUES)) for name in ("model", *names)]
    ascii_only, spaced = draw(st.booleans()), draw(st.booleans())
    separators = (", ", ": ") if spaced else (",", ":")

    def written(value: Any) -> bytes:
        text = json.dumps(value, ensure_ascii=ascii_only, separators=separators, allow_nan=True)
        return text.encode("utf-8", "surrogatepass")

    parts = [written(name) + b":" + written(value) for name, value in members]
    if draw(st.booleans()):
        parts.append(b'"%b":%b' % (draw(st.sampled_from(FIELDS)).encode(), draw(st.sampled_from(ODD_VALUES))))
    body = b"{" + b",".join(parts) + b"}"
    if draw(st.booleans()):
        body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],' + body[1:].lstrip(b",")
    return body


# Values that are JSON, for members that are read one by one.
READ_VALUES = (
    *(b"null", b"true", b"false", b"0", b"1", b"2", b"15", b"16", b"3.0", b"1e2", b"-1", b"10000000000000000000"),
    *(
        b'""',
        b'"auto"',
        b'"none"',
        b'"required"',
        b'"m"',
        b'"\\u0041\\n"',
        b'"\\ud83d\\ude00"',
        b'"3"',
        b'"true"',
        b'"1_0"',
    ),
    *(b"[]", b"[ ]", b"{}", b"{ }", b'["a","b"]', b"[1,2]", b"[[1],[2]]", b'[{"strict":true}]', b'{"strict":1}'),
    *(b'{"type":"json_object"}', b'{"type":"json_schema","a":[]}', b'{"type":"text"}', b'{"type":"grammar"}'),
    *(b'{"format":{"type":"json_schema"}}', b'{"format":"json_object"}', b'{"mode":"auto"}', b'{"mode":"none"}'),
    *(b'{"allowed_tools":{"mode":"auto"},"mode":"none"}', b'{"allowed_tools":1}', b'{"mode":""}', b'{"id":"c1"}'),
    *(b'{"include_usage":true}', b'{"include_usage":false}', b'{"include_usage" : null, "a":1}', b'{"version":"7"}'),
    *(b'{"ty\\u0070e":"json_object"}', b'{"type":1,"type":"json_object"}', b'"' + b"k" * 2000 + b'"', b'"\xc3\xa9"'),
    *(b'{"id":"' + b"i" * 5000 + b'"}', b"[" + b'"a",' * 2100 + b'"b"]', b'{"a":{"b":[{"c":[1.5e-3]}]}}'),
)
# Of some fields most values are of their type, near a bound.
NUMBERS = (b"0", b"1", b"2", b"15", b"16", b"17", b"600", b"3.0", b'"3"', b"-1")
NAMES = (b'"u"', b'""', b'"' + b"k" * 1022 + b'"', b'"' + b"k" * 1023 + b'"', b'"' + b"k" * 4094 + b'"', b'{"id":"c1"}')
CHOICES = (
    b'"auto"',
    b'"none"',
    b'"required"',
    b'{"mode":"auto"}',
    b'{"allowed_tools":{"mode":"none"}}',
    b'{"type":"a"}',
)
LIKELY = {
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of", "min_tokens"), NUMBERS
    ),
    **dict.fromkeys(("user", "prompt_cache_key", "conversation"), NAMES),
    "tool_choice": CHOICES,
    "tools": (b"[]", b'[{"a":1}]', b'[{"strict":true}]'),
    "stream": (b"true", b"false"),
}
vary_bytes = varying(TOKENS)


def likely_value(name: str, random: Random) -> bytes:
    values = LIKELY.get(name, READ_VALUES) if random.random() < 0.7 else READ_VALUES
    return random.choice(values)


def vary_body(body: bytes, random: Random) -> bytes:
    """Another body: most are JSON, with some fields in any order; the others are `body` with bytes changed."""
    if random.random() < 0.3:
        return vary_bytes(body, random)
    names = random.sample(FIELDS, random.randint(0, 5)) + random.sample(tuple(LIKELY), random.randint(0, 3))
    names = list(dict.fromkeys(names))
    space = random.choice((b"", b"", b" ", b"\n\t"))
    members = [b'"%b":%b%b' % (name.encode(), space, likely_value(name, random)) for name in names if name != "model"]
    members.append(b'"model":%b' % random.choice((b'"m"', b'"m"', b'"\xc3\xa9/n"', b"null", b'"a\\"b"')))
    members.append(b'"messages":[{"role":"user","content":%b}]' % random.choice(READ_VALUES))
    random.shuffle(members)
    written = space + b"{" + (space + b"," + space).join(members) + space + b"}"
    return written if random.random() < 0.8 else vary_bytes(written, random)
