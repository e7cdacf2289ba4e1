"""The variables of a container, each name once: the API server refuses a list with a name twice."""

from collections.abc import Iterable
from typing import Any

Variable = dict[str, Any]


def merged(*lists: Iterable[Variable]) -> list[Variable]:
    """Merge lists of variables. The last variable of a name applies, at the place of the first."""
    named = {item["name"]: item for variables in lists for item in variables}
    return list(named.values())
