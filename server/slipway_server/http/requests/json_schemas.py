"""JSON schemas without what demands nothing: annotations, and keywords with a value that every instance has (pure).

The engine refuses keywords that it does not keep, by name. Libraries write many that say nothing about a value.
"""

from typing import Any

# The words of `format` that grammars keep. Any other is an annotation, as JSON Schema has it: pydantic writes
# "password" and "path", OpenAPI "int32", and everyone their own.
FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)  # fmt: skip
ONE = frozenset(
    {
        "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
SEVERAL = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
NAMED = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
# Keywords with the values that demand nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "propertyNames": (True, {}),
    "not": (False,),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "$recursiveAnchor": (False,),
}


def demanded(schema: Any) -> Any:
    """The schema without keywords that demand nothing. It must not be deep: see `structured.check_depth`."""
    if not isinstance(schema, dict):
        return schema
    return {name: _within(name, value) for name, value in schema.items() if not _is_neutral(name, value, schema)}


def _within(name: str, value: Any) -> Any:
    if name in NAMED and isinstance(value, dict):
        return {key: demanded(inner) for key, inner in value.items()}
    if name in SEVERAL and isinstance(value, list):
        return [demanded(inner) for inner in value]
    return demanded(value) if name in ONE else value


def _is_neutral(name: str, value: Any, schema: dict[str, Any]) -> bool:
    if name == "format":
        return isinstance(value, str) and value not in FORMATS
    if name == "$dynamicAnchor":  # a name, which only a $dynamicRef reads
        return True
    if name in ("minContains", "maxContains"):
        return "contains" not in schema
    if name in ("then", "else"):
        return "if" not in schema
    if name == "if":
        return "then" not in schema and "else" not in schema
    return any(value == one and type(value) is type(one) for one in NEUTRAL.get(name, ()))
