"""The edges of a number's range, and hostile numbers inside it: finite lists to draw from by other means (pure)."""

import json
import math
from typing import Any

from slipway_server.http import openapi
from slipway_server.sampling import PARAMETERS, Acts

from .values import NUMBERS

# Of a sound request: each is completed or refused, whatever is drawn. They decide which token is chosen.
_FIELDS = [
    name for name, parameter in PARAMETERS.items() if parameter.is_number and parameter.acts in (Acts.LOGITS, Acts.DRAW)
]


def edges(schema: dict[str, Any]) -> list[Any]:
    """Numbers that a schema of one number takes, sorted; its own bounds first among them."""
    for choice in schema.get("anyOf", ()):
        if choice.get("type") in ("integer", "number"):
            return edges(choice)
    whole = schema["type"] == "integer"
    low, high = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    if above is not None:
        low = above + 1 if whole else math.nextafter(above, math.inf)
    if low is None or high is None:
        raise ValueError("a number without bounds has no edges")
    numbers = [one for one in NUMBERS if isinstance(one, int if whole else int | float)]
    return sorted({low, high, *(one for one in numbers if low <= one <= high)})


def _sampling() -> dict[str, list[Any]]:
    """Of what the server's own schema takes for each field."""
    fields = json.loads(openapi.document())["components"]["schemas"]["CompletionRequest"]["properties"]
    found = {name: edges(fields[name]) for name in _FIELDS}
    # More than the requested tokens is an invalid request.
    return found | {"min_tokens": [value for value in found["min_tokens"] if value <= 1]}


SAMPLING = _sampling()
