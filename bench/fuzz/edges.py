"""The edges of a number's range, and hostile numbers inside it: a finite list for whoever draws by other means (pure)."""

import math
from typing import Any

from .values import NUMBERS


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
