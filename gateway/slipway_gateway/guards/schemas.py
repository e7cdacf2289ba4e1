"""Whether JSON fits a schema. It runs in a process of its own, which `workers` ends when it takes too long.

jsonschema decides. Two things of it are replaced: it would match `pattern` and `patternProperties` with expressions
whose time has no bound, and it would fetch schemas that `$ref` names by their address.
"""

import importlib.util
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

JSONSCHEMA = "jsonschema"
MAX_DEPTH, MAX_PROBLEM = 64, 200
_MAX_PATTERN_BYTES = 1 << 20  # of memory for one expression
# Keywords whose rules of jsonschema match names of properties in a way that is not replaced here.
_NOT_SERVED = ("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef")
_ANY = msgspec.json.Decoder()


class UnusableSchema(Exception):
    """A schema by which nothing can be checked. The message says why, for the client that sent it."""


def missing() -> bool:
    """Whether the package is not installed. Nothing is imported for this."""
    return importlib.util.find_spec(JSONSCHEMA) is None


def problems(schema: str, texts: list[str]) -> list[str]:
    """Of each text, why it does not fit the schema, in at most MAX_PROBLEM characters; empty where it fits.

    `schema`: JSON. Raises UnusableSchema.
    """
    validator = _validator(schema)
    return [_problem(validator, text) for text in texts]


def _problem(validator: Any, text: str) -> str:
    try:
        value = _ANY.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "it is no JSON"
    try:
        found = next(validator.iter_errors(value), None)
    except RecursionError:
        raise UnusableSchema("it refers to itself without end, or the response is nested too deeply") from None
    except Exception as error:
        # jsonschema fails so on numbers that no float holds, and on a $ref that leads to what is no schema.
        raise UnusableSchema(f"a check by it fails: {type(error).__name__}") from None
    if found is None:
        return ""
    # The message of jsonschema repeats the value, which may be long.
    return f"{found.json_path[:120]} does not fit {found.validator} of the schema"[:MAX_PROBLEM]


@lru_cache(16)
def _validator(text: str) -> Any:
    import jsonschema
    import referencing

    try:
        schema = _ANY.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise UnusableSchema("it is no JSON") from None
    _check(schema)
    kind = _kind()
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise UnusableSchema(f"{error.json_path[:120]} is not as JSON Schema has it"[:MAX_PROBLEM]) from None
    registry: Any = referencing.Registry()
    _check_references(schema, registry)
    return kind(schema, registry=registry)


@lru_cache(1)
def _kind() -> Any:
    import jsonschema

    rules: dict[str, Callable[..., Iterator[Any]]] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    return jsonschema.validators.extend(jsonschema.Draft202012Validator, rules)


def _check(schema: Any) -> None:
    """Raises UnusableSchema: it is too deep, names another document, or has a keyword or a pattern that is not served.

    Members of `properties` with the names of keywords are refused as these are, which is rare and safe.
    """
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise UnusableSchema(f"it is nested more than {MAX_DEPTH} levels deep")
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                _check_members(item)
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        level = [item for item in inner if isinstance(item, dict | list)]


def _check_references(schema: Any, registry: Any) -> None:
    """Raises UnusableSchema: a $ref leads to nothing, or to what is no schema.

    Where an inner schema has an $id, a $ref may begin there: those are followed only while a response is checked.
    """
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    items = list(_objects(schema))
    references = {item["$ref"] for item in items if isinstance(item.get("$ref"), str)}
    if not references or any("$id" in item for item in items[1:]):
        return
    resolver = registry.resolver_with_root(DRAFT202012.create_resource(schema))
    for reference in references:
        try:
            target = resolver.lookup(reference).contents
        except (Unresolvable, ValueError):
            raise UnusableSchema(f"$ref {reference[:64]} leads to nothing") from None
        if not isinstance(target, dict | bool):
            raise UnusableSchema(f"$ref {reference[:64]} leads to what is no schema")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects within a value, the outer one first. The value is not deep: `_check` has seen it."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(inner)


def _check_members(item: dict[str, Any]) -> None:
    for keyword in _NOT_SERVED:
        if keyword in item:
            raise UnusableSchema(f"{keyword} is not served")
    reference = item.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise UnusableSchema("$ref must begin with #: no other document is read")
    if isinstance(pattern := item.get("pattern"), str):
        _expression(pattern)
    if isinstance(named := item.get("patternProperties"), dict):
        for pattern in named:
            _expression(pattern)


@lru_cache(256)
def _expression(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = _MAX_PATTERN_BYTES, False
    try:
        return re2.compile(pattern, options=options)
    except re2.error:
        raise UnusableSchema(f"the pattern {pattern[:64]} is no expression of RE2") from None


def _error(message: str) -> Any:
    import jsonschema

    return jsonschema.ValidationError(message)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not _expression(pattern).search(instance):
        yield _error("the pattern does not fit")


def _pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for pattern, inner in patterns.items():
            for name, value in instance.items():
                if _expression(pattern).search(name):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in known or any(_expression(pattern).search(name) for pattern in patterns):
            continue
        if allowed is False:
            yield _error("there is a property that is not allowed")
        elif allowed is not True:
            yield from validator.descend(value, allowed, path=name)
