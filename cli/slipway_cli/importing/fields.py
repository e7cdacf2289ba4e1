"""A manifest of another tool: read by name and type, with what was not read as the rest (pure)."""

from collections.abc import Iterator
from typing import Any

MAX_VALUES, MAX_DEPTH, MAX_TEXT = 20_000, 40, 65_536  # of one manifest; YAML's aliases make many of few
MAX_REST = 200  # fields that are named as not mapped


class Unusable(ValueError):
    """A manifest that cannot be converted; the message names the field and what to do."""


def check(value: Any) -> None:
    """Raise Unusable for a manifest with too many values, or nested too deep."""
    count, stack = 0, [(value, 0)]
    while stack:
        item, depth = stack.pop()
        count += 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise Unusable(f"the manifest has more than {MAX_VALUES} values, or more than {MAX_DEPTH} levels")
        if isinstance(item, str) and len(item) > MAX_TEXT:
            raise Unusable(f"a text of the manifest has more than {MAX_TEXT} characters")
        if isinstance(item, dict):
            stack += [(one, depth + 1) for pair in item.items() for one in pair]
        elif isinstance(item, list):
            stack += [(one, depth + 1) for one in item]


class Fields:
    """One object of a manifest. `path`: where it is, as in kubectl explain."""

    def __init__(self, value: Any, path: str = "") -> None:
        """Raises Unusable where `value` is no object."""
        if not isinstance(value, dict):
            raise Unusable(f"{path or 'the manifest'} is no object")
        self._value, self.path = {str(name): one for name, one in value.items()}, path
        self._read: set[str] = set()
        self._children: dict[str, list[Fields]] = {}

    def __contains__(self, name: str) -> bool:
        return self._value.get(name) is not None

    def names(self) -> list[str]:
        """The fields that there are."""
        return [name for name in self._value if name in self]

    def text(self, name: str) -> str | None:
        """A text, or None. Raises Unusable for anything else."""
        found: str | None = self._typed(name, str, "a text")
        return found

    def number(self, name: str) -> int | None:
        """A whole number, or None. Raises Unusable for anything else."""
        found: int | None = self._typed(name, int, "a whole number")
        if isinstance(found, bool):
            raise Unusable(f"{self._at(name)} is no whole number")
        return found

    def flag(self, name: str) -> bool | None:
        """A boolean, or None. Raises Unusable for anything else."""
        found: bool | None = self._typed(name, bool, "true or false")
        return found

    def quantity(self, name: str) -> str | None:
        """A quantity of Kubernetes, such as 4, 500m or 24Gi, or None."""
        found = self._typed(name, (str, int, float), "a quantity")
        return None if found is None or isinstance(found, bool) else str(found)

    def texts(self, name: str) -> list[str]:
        """A list of texts; numbers become texts, as in arguments. Raises Unusable for anything else."""
        found = self._typed(name, list, "a list") or []
        if not all(isinstance(one, str | int | float) for one in found):
            raise Unusable(f"{self._at(name)} is no list of texts")
        return [str(one) for one in found]

    def labels(self, name: str) -> dict[str, str]:
        """An object of texts. Raises Unusable for anything else."""
        found = self._typed(name, dict, "an object") or {}
        if not all(isinstance(one, str | int | float) for one in found.values()):
            raise Unusable(f"{self._at(name)} has values that are no texts")
        return {str(key): str(one) for key, one in found.items()}

    def child(self, name: str) -> "Fields":
        """An object, empty where there is none. Raises Unusable for anything else."""
        self._read.add(name)
        made = Fields(self._value[name] if name in self else {}, self._at(name))
        self._children.setdefault(name, []).append(made)
        return made

    def children(self, name: str) -> "list[Fields]":
        """A list of objects. Raises Unusable for anything else."""
        found = self._typed(name, list, "a list") or []
        made = [Fields(one, f"{self._at(name)}[{number}]") for number, one in enumerate(found)]
        self._children.setdefault(name, []).extend(made)
        return made

    def skip(self, *names: str) -> None:
        """These mean nothing outside of the other tool."""
        self._read.update(names)

    def rest(self) -> Iterator[str]:
        """The paths of what was not read."""
        for name in self.names():
            if name not in self._read:
                yield self._at(name)
            for child in self._children.get(name, ()):
                yield from child.rest()

    def _typed(self, name: str, kind: Any, words: str) -> Any:
        self._read.add(name)
        found = self._value.get(name)
        if found is not None and not isinstance(found, kind):
            raise Unusable(f"{self._at(name)} is no {words.removeprefix('a ').removeprefix('an ')}: it must be {words}")
        return found

    def _at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name
