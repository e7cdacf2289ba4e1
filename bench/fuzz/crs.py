"""Custom resources by their CRDs: sound ones at the edges of chosen fields, and mutations of them (pure).

One example names a few fields of the schema, whatever their depth. What each of them needs around it is drawn from the
schema, and the field itself is drawn from its own schema or replaced by something extreme. So every field is reached
with few draws, and the rest of the object mostly stays sound.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from .schema import DEEPEST, strategy
from .values import NUMBERS, SHAPES, TEXTS, Literal, Pairs

Json = dict[str, Any]
Path = tuple[str, ...]
ITEMS, VALUES = "[]", "{}"  # in a path: any item of a list, any value of a map
MOST_FIELDS = 3
# What a field that must be there holds when another one is looked at, where no schema has what its rules accept.
PLAIN: Json = {
    "uri": "hf://org/model",
    "url": "http://a.example/x",
    "templateName": "llm-default",
    "name": "a",
    "event": "FirstAttemptError",
    "type": "InFlight",
    "target": "4",
    "headerName": "x-a",
    "query": "up",
    "headerValue": {"exact": "a"},
    "maxReplicas": 4,
    "address": "http://a.example",
    "successCondition": "result > 0",
}
# One of them leaves no room for the others.
ALTERNATIVES = tuple(
    map(
        frozenset,
        (("canary", "blueGreen"), ("prometheus", "web", "job"), ("event", "provider"), ("value", "valueFrom")),
    )
)
TIMES = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-02-30T00:00:00Z", "2026-01-01", "now")
QUANTITIES = ("0", "-1", "1e99", "1E", "0.0000000001", "9" * 60, "1Qi", "NaN", "Inf", "+", ".", "1.5GiB", "")
DURATIONS = ("9999999h", "0s", "1h1h", "-5m", "5M", "٣s", "1.5h")

# JSON as the API server sends it: numbers of 64 bits, no NaN, no key twice; what its parser refuses never gets here.
extreme: st.SearchStrategy[Any] = st.sampled_from(
    (
        *(one for one in (*NUMBERS, *TEXTS, *SHAPES) if not isinstance(one, Literal | Pairs) and one != {"5": None}),
        *(*TIMES, *QUANTITIES, *DURATIONS, 10**25, 1e25, "\ud800", {"5": 1.5}, [[[[]]]]),
    )
).filter(lambda value: not _has_literal(value))


def _has_literal(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(item, Literal) for item in value.values())


@dataclass(frozen=True, slots=True)
class Drawn:
    """One object, and the fields that it was drawn for. `sound`: nothing was replaced by something extreme."""

    value: Json
    fields: tuple[str, ...]
    sound: bool


class Crd:
    """A CustomResourceDefinition, as `yaml` reads it."""

    def __init__(self, document: Json) -> None:
        names, version = document["spec"]["names"], document["spec"]["versions"][0]
        self.kind, self.plural = names["kind"], names["plural"]
        self.version = f"{document['spec']['group']}/{version['name']}"
        self._parts: Json = version["schema"]["openAPIV3Schema"]["properties"]

    def fields(self, part: str = "spec") -> list[Path]:
        """Paths of all fields below `spec` or `status`."""
        return list(_paths(self._parts[part])) if part in self._parts else []

    def drawn(
        self, part: str = "spec", bases: Sequence[Json] = ({},), words: Sequence[str] = ()
    ) -> st.SearchStrategy[Drawn]:
        """Values of `spec` or `status`: one of `bases` with a few fields drawn over it, and at times others lost.

        `words`: texts that mean something, and that are put anywhere.
        """
        wild = st.one_of(extreme, extreme, st.sampled_from(words)) if words else extreme
        schema, paths = self._parts[part], self.fields(part)

        @st.composite
        def value(draw: st.DrawFn) -> Drawn:
            most = draw(st.sampled_from((1, MOST_FIELDS)))
            chosen = draw(st.lists(st.sampled_from(paths), min_size=1, max_size=most, unique=True))
            sound = draw(st.booleans())
            made: Any = draw(st.sampled_from(_nearest(bases, chosen[0])))
            for place, path in enumerate(chosen):
                made = merged(made, _around(draw, schema, path, None if sound or place else wild))
            if not sound and draw(st.integers(0, 3)) == 0:
                name = draw(st.sampled_from(sorted(made)))
                made = {**made, name: damaged(draw, made[name])}
            return Drawn(made, tuple(".".join(path) for path in chosen), sound)

        return value()

    def manifest(self, name: str, namespace: str, spec: Json) -> Json:
        """An object that could be sent to an API server."""
        meta = {"name": name, "namespace": namespace}
        return {"apiVersion": self.version, "kind": self.kind, "metadata": meta, "spec": spec}


def _paths(schema: Json, before: Path = ()) -> Iterator[Path]:
    for name, item in schema.get("properties", {}).items():
        yield (*before, name)
        yield from _paths(item, (*before, name))
    if isinstance(items := schema.get("items"), dict):
        yield from _paths(items, (*before, ITEMS))
    if isinstance(values := schema.get("additionalProperties"), dict):
        yield (*before, VALUES)
        yield from _paths(values, (*before, VALUES))


def _nearest(bases: Sequence[Json], path: Path) -> list[Json]:
    """Those that have most of what is around a field."""
    depths = [_depth(base, path) for base in bases]
    return [base for base, depth in zip(bases, depths, strict=True) if depth == max(depths)]


def _depth(value: Any, path: Path) -> int:
    if not path or not isinstance(value, dict | list) or not value:
        return 0
    inner = value[0] if isinstance(value, list) else value.get(path[0])
    return 0 if inner is None else 1 + _depth(inner, path[1:])


def _around(draw: st.DrawFn, schema: Json, path: Path, wild: st.SearchStrategy[Any] | None) -> Any:
    """A value of the schema that has the field; the field itself is of its schema or wild."""
    if not path:
        return draw(strategy(schema) if wild is None else wild)
    step, rest = path[0], path[1:]
    if step == ITEMS:
        return [_around(draw, schema["items"], rest, wild)]
    if step == VALUES:
        names = strategy(schema["propertyNames"]) if "propertyNames" in schema else st.sampled_from(("a", "b", ""))
        return {str(draw(names)): _around(draw, schema["additionalProperties"], rest, wild)}
    properties: Mapping[str, Json] = schema["properties"]
    least = _needed(draw, schema)
    return {**least, step: _around(draw, properties[step], rest, wild)}


def _needed(draw: st.DrawFn, schema: Json) -> Json:
    """The fields that an object must have."""
    properties = schema.get("properties", {})
    return {name: _least(draw, name, properties.get(name, {})) for name in schema.get("required", ())}


def _least(draw: st.DrawFn, name: str, schema: Json) -> Any:
    """What a field must have and no more: few rules of the CRD concern that."""
    if name in PLAIN and PLAIN[name] in schema.get("enum", [PLAIN[name]]):
        return PLAIN[name]
    if schema.get("type") == "object" and "properties" in schema:
        return _needed(draw, schema)
    if schema.get("type") == "array":
        return [_least(draw, "", schema.get("items", {})) for _ in range(schema.get("minItems", 0))]
    return draw(strategy(schema, depth=DEEPEST - 1))


def merged(one: Any, other: Any) -> Any:
    """The other one over the one; of lists only the first items."""
    if isinstance(one, dict) and isinstance(other, dict):
        others = {name for group in ALTERNATIVES if group & other.keys() for name in group - other.keys()}
        one = {name: item for name, item in one.items() if name not in others}
        return one | {name: merged(one[name], item) if name in one else item for name, item in other.items()}
    if isinstance(one, list) and isinstance(other, list) and one and len(other) <= 1:
        return [merged(one[0], other[0]), *one[1:]] if other else one
    return other


def damaged(draw: st.DrawFn, value: Any, typed: bool = False) -> Any:
    """The same with one node somewhere lost, doubled or replaced; `typed`: by one of the same type."""
    if not value or not isinstance(value, dict | list) or (not typed and draw(st.integers(0, 4)) == 0):
        same = type(value) if typed else object
        return draw(extreme.filter(lambda other: isinstance(other, same)))
    if isinstance(value, list):
        place = draw(st.integers(0, len(value) - 1))
        inner = [damaged(draw, value[place], typed)]
        return [*value[:place], *draw(st.sampled_from(([], inner, inner, [value[place]] * 2))), *value[place + 1 :]]
    name = draw(st.sampled_from(sorted(value)))
    if draw(st.integers(0, 3)) == 0:
        return {key: item for key, item in value.items() if key != name}
    return {**value, name: damaged(draw, value[name], typed)}
