"""Hypothesis strategies from JSON Schema, for the part of it that our OpenAPI document and CRDs use (pure).

hypothesis-jsonschema's last release does not run with today's Hypothesis, and schemathesis brings a test runner of its
own; what is needed here is drawn in a few lines, and aims at the edges of each range.
"""

import math
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]
Strategy = st.SearchStrategy[Any]
LONGEST_LIST, LONGEST_TEXT, DEEPEST = 6, 60, 6
ANYTHING: Strategy = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=20),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=5,
)


def strategy(schema: Any, named: Mapping[str, Json] | None = None, depth: int = 0) -> Strategy:
    """Values that a schema takes. `named`: what `$ref` may name, by the last part of its path."""
    known = named or {}
    if not isinstance(schema, dict) or not schema or depth > DEEPEST:
        return ANYTHING if depth <= DEEPEST else st.none()
    if reference := schema.get("$ref"):
        return strategy(known.get(reference.rpartition("/")[2], {}), known, depth + 1)
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return st.one_of(*(strategy(choice, known, depth) for choice in choices))
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    if schema.get("x-kubernetes-int-or-string"):
        return st.one_of(st.integers(-1, 200), st.sampled_from(("0%", "25%", "100%", "101%", "1")))
    return _of_type(schema, known, depth)


def _of_type(schema: Json, known: Mapping[str, Json], depth: int) -> Strategy:
    kind = schema.get("type")
    if isinstance(kind, list):
        return st.one_of(*(_of_type(schema | {"type": one}, known, depth) for one in kind))
    if kind == "array":
        least = schema.get("minItems", 0)
        most = max(least, min(schema.get("maxItems", LONGEST_LIST), LONGEST_LIST))
        return st.lists(strategy(schema.get("items"), known, depth + 1), min_size=least, max_size=most)
    if kind == "object":
        return _objects(schema, known, depth)
    simple = {"integer": _integers, "number": _numbers, "string": _texts}
    if kind in simple:
        return simple[kind](schema)
    return {"boolean": st.booleans(), "null": st.none()}.get(str(kind), ANYTHING)


def _integers(schema: Json) -> Strategy:
    low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
    # A number in OpenAPI 3.1, a word about `minimum` in the schema of a CRD.
    above, below = schema.get("exclusiveMinimum", low - 1), schema.get("exclusiveMaximum", high + 1)
    low = low + above if isinstance(above, bool) else max(low, above + 1)
    high = high - below if isinstance(below, bool) else min(high, below - 1)
    low, high = math.ceil(low), math.floor(high)
    near = [value for value in (0, 1, 2, 5, 16) if low <= value <= high]
    return st.one_of(st.sampled_from([low, high, *near]), st.integers(low, high))


def _numbers(schema: Json) -> Strategy:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    return st.floats(
        low if above is None or isinstance(above, bool) else above,
        high if below is None or isinstance(below, bool) else below,
        exclude_min=above not in (None, False),
        exclude_max=below not in (None, False),
        allow_nan=False,
        allow_infinity=False,
    )


def _texts(schema: Json) -> Strategy:
    if pattern := schema.get("pattern"):
        return st.from_regex(pattern, fullmatch=pattern.startswith("^") and pattern.endswith("$"))
    least = schema.get("minLength", 0)
    return st.text(min_size=least, max_size=max(least, min(schema.get("maxLength", LONGEST_TEXT), LONGEST_TEXT)))


def _objects(schema: Json, known: Mapping[str, Json], depth: int) -> Strategy:
    properties: Json = schema.get("properties", {})
    required = {name: strategy(properties.get(name), known, depth + 1) for name in schema.get("required", ())}
    optional = {name: strategy(item, known, depth + 1) for name, item in properties.items() if name not in required}
    fixed = st.fixed_dictionaries(required, optional=optional)
    more = schema.get("additionalProperties")
    if properties or more is False:
        return fixed
    names = _texts(schema["propertyNames"]) if "propertyNames" in schema else st.text(max_size=12)
    return st.dictionaries(names, strategy(more if isinstance(more, dict) else {}, known, depth + 1), max_size=4)
