"""Examples of a JSON schema that go to its nested schemas: a trial walks along them (`trial.py`)."""

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any] | bool

MAX_DEPTH = 32
MAX_SCHEMAS = 2000  # that one example goes to
NESTING = frozenset({"properties", "items", "prefixItems", "anyOf", "oneOf", "allOf", "$ref"})


def examples(text: str, count: int) -> Iterator[str]:
    """`count` texts without white space. Number k takes alternative k of each `anyOf`, `oneOf`, `enum` and `type`.

    They have each property that is required or has a schema with other schemas in it, besides the first one. What the
    schema demands of strings and numbers is not all kept: who walks along an example leaves it where it is not allowed.
    """
    schema: Schema = json.loads(text)
    for number in range(count):
        yield json.dumps(_Example(schema, number).of(schema, 0), separators=(",", ":"), ensure_ascii=False)


class _Example:
    def __init__(self, root: Schema, number: int) -> None:
        self._root, self._number, self._left = root, number, MAX_SCHEMAS
        self._open: set[str] = set()  # references that the example is within: it does not go around

    def of(self, schema: Schema, depth: int) -> Any:
        self._left -= 1
        if not isinstance(schema, dict) or depth > MAX_DEPTH or self._left < 0:
            return ""
        if "const" in schema:
            return schema["const"]
        for name in ("enum", "anyOf", "oneOf", "allOf"):
            if isinstance(alternatives := schema.get(name), list) and alternatives:
                chosen = alternatives[self._number % len(alternatives)]
                if name == "enum":
                    return chosen
                if "properties" not in schema:
                    return self.of(chosen, depth + 1)
        if isinstance(reference := schema.get("$ref"), str):
            self._open.add(reference)
            found = self.of(self._resolve(reference), depth + 1)
            self._open.discard(reference)
            return found
        return self._of_type(schema, depth)

    def _of_type(self, schema: dict[str, Any], depth: int) -> Any:
        types = schema.get("type")
        kind = types[self._number % len(types)] if isinstance(types, list) and types else types
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, depth)
        if kind == "array" or (kind is None and ("items" in schema or "prefixItems" in schema)):
            prefix = schema.get("prefixItems")
            items = (
                prefix if isinstance(prefix, list) else [schema.get("items", True)] * max(1, _least(schema, "minItems"))
            )
            return [self.of(item, depth + 1) for item in items if not self._again(item)]
        if kind in ("integer", "number"):
            return _least(schema, "minimum")
        return {"boolean": True, "null": None}.get(str(kind), "a" * _least(schema, "minLength"))

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict):
            return {}
        wanted = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        first = next(iter(properties), None)
        return {
            name: self.of(one, depth + 1)
            for name, one in properties.items()
            if name in wanted
            or (not self._again(one) and (name == first or (isinstance(one, dict) and NESTING & one.keys())))
        }

    def _again(self, schema: Schema) -> bool:
        return isinstance(schema, dict) and str(schema.get("$ref")) in self._open

    def _resolve(self, reference: str) -> Schema:
        found: Any = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            found = found.get(part.replace("~1", "/").replace("~0", "~"), True) if isinstance(found, dict) else True
        return found if isinstance(found, dict) else True


def _least(schema: dict[str, Any], name: str) -> int:
    """A bound of the schema, as far as an example keeps it."""
    found = schema.get(name)
    return min(found, 64) if isinstance(found, int) and found > 0 else 0
