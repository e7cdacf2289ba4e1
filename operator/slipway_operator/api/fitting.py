"""A rendered object within the bounds of its type: what is too long is cut, so that no write of it is refused."""

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, cast

from slipway_operator.api.schema import Node, structural

Fit = Callable[[Any], Any]

_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def fitted(kind: type, rendered: Any) -> Any:
    """JSON of this type, with texts, lists and numbers as the API server takes them. Of a list the last items stay."""
    fit = _fit_of(cast(Hashable, kind))
    return fit(rendered) if fit else rendered


@cache
def _fit_of(kind: Hashable) -> Fit | None:
    return _fit(structural(cast(type, kind)))


def _fit(node: Node) -> Fit | None:
    """How values of a schema are cut; None where it bounds nothing, so that they are not read."""
    match node.get("type"):
        case "object":
            return _object(node)
        case "array":
            return _array(node)
        case "string" if "maxLength" in node:
            limit = node["maxLength"]
            return lambda text: text if len(text) <= limit else f"{text[: limit - 1]}…"
        case "integer":
            least, most = _RANGES[node.get("format", "int64")]
            least, most = max(least, node.get("minimum", least)), min(most, node.get("maximum", most))
            return lambda number: min(max(number, least), most)
    return None


def _object(node: Node) -> Fit | None:
    parts = {name: fit for name, part in node.get("properties", {}).items() if (fit := _fit(part))}
    rest = _fit(node["additionalProperties"]) if "additionalProperties" in node else None
    if not parts and not rest:
        return None

    def fit_object(value: dict[str, Any]) -> dict[str, Any]:
        return {name: made(item) if (made := parts.get(name, rest)) else item for name, item in value.items()}

    return fit_object


def _array(node: Node) -> Fit | None:
    limit, item = node.get("maxItems"), _fit(node["items"])
    if limit is None and item is None:
        return None

    def fit_items(value: list[Any]) -> list[Any]:
        kept = value if limit is None else value[-limit:]
        return [item(one) for one in kept] if item else kept

    return fit_items
