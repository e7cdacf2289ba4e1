"""A manifest of another tool: read by name and type, with what was not read as the rest (pure)."""

from collections.abc import Iterator
from typing import Any

MAX_VALUES, MAX_DEPTH, MAX_TEXT = 20_000, 40, 65_536  # of one manifest; YAML's aliases make many of few
MAX_REST = 200  # fields that are named as not mapped
MAX_NUMBER = 2**63  # Kubernetes has no larger one, and Python does not print all of them


class Unusable(ValueError):
    """A manifest that cannot be converted; the message names the field and what to do."""


def check(value: Any) -> None:
    """Raise Unusable for a manifest with too many values, nested too deep, or with numbers that are none."""
    count, stack = 0, [(value, 0)]
    while stack:
        item, depth = stack.pop()
        count += 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise Unusable(f"the manifest has more than {MAX_VALUES} values, or more than {MAX_DEPTH} levels")
        if isinstance(item, str) and len(item) > MAX_TEXT:
            raise Unusable(f"a text of the manifest has more than {MAX_TEXT} characters: {item[:40]!r}")
        if isinstance(item, int | float) and not abs(item) < MAX_NUMBER:  # NaN, too
            raise Unusable("a number of the manifest is not within 64 bits")
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

    def empty(self) -> list[str]:
        """The fields that are null."""
        return [name for name, value in self._value.items() if value is None]

    def text(self, name: str) -> str | None:
        """A text, or None. Raises Unusable for anything else."""
        found: str | None = self._typed(name, str, "a text")
        return found

    def number(self, name: str) -> int | None:
        """A whole number, or None. Raises Unusable for anything else."""
        found: int | None = self._typed(name, int, "a whole number")
        return found

    def within(self, name: str, least: int, most: int) -> int | None:
        """A whole number in a range, or None. Raises Unusable for anything else."""
        number = self.number(name)
        if number is not None and not least <= number <= most:
            raise Unusable(f"{self.at(name)} is {number}: it must be {least} to {most}")
        return number

    def flag(self, name: str) -> bool | None:
        """A boolean, or None. Raises Unusable for anything else."""
        found: bool | None = self._typed(name, bool, "true or false")
        return found

    def quantity(self, name: str) -> str | None:
        """A text, or a number as a text, such as a quantity, or None. Raises Unusable for anything else."""
        found = self._typed(name, (str, int, float), "a text or a number")
        return None if found is None else str(found)

    def texts(self, name: str) -> list[str]:
        """A list of texts; numbers become texts, as in arguments. Raises Unusable for anything else."""
        found = self._typed(name, list, "a list") or []
        for number, one in enumerate(found):
            if isinstance(one, bool) or not isinstance(one, str | int | float):
                raise Unusable(f"{self.at(name)}[{number}] is no text: write it in quotes")
        return [str(one) for one in found]

    def labels(self, name: str) -> dict[str, str]:
        """An object of texts. Raises Unusable for anything else."""
        found = self._typed(name, dict, "an object") or {}
        for key, one in found.items():
            if isinstance(one, bool) or not isinstance(one, str | int | float):
                raise Unusable(f"{self.at(name)}.{str(key)[:63]} is no text: write it in quotes")
        return {str(key): str(one) for key, one in found.items()}

    def child(self, name: str) -> "Fields":
        """An object, empty where there is none. Raises Unusable for anything else."""
        self._read.add(name)
        if name not in self._children:
            self._children[name] = [Fields(self._value[name] if name in self else {}, self.at(name))]
        return self._children[name][0]

    def children(self, name: str) -> "list[Fields]":
        """A list of objects. Raises Unusable for anything else."""
        found = self._typed(name, list, "a list") or []
        if name not in self._children:
            self._children[name] = [Fields(one, f"{self.at(name)}[{number}]") for number, one in enumerate(found)]
        return self._children[name]

    def skip(self, *names: str) -> None:
        """These mean nothing outside of the other tool."""
        self._read.update(names)

    def rest(self) -> Iterator[str]:
        """The paths of what was not read."""
        for name in self.names():
            if name not in self._read:
                yield self.at(name)
            for child in self._children.get(name, ()):
                yield from child.rest()

    def _typed(self, name: str, kind: Any, words: str) -> Any:
        self._read.add(name)
        found = self._value.get(name)
        if found is not None and (not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool)):
            raise Unusable(f"{self.at(name)} is no {words.removeprefix('a ').removeprefix('an ')}: it must be {words}")
        return found

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}" if self.path else name
