"""How much a stranger's JSON may hold, counted before objects are made of it.

A byte of JSON becomes up to fifty bytes of objects, and decoding lets nothing else run. Where the shape is known, types
are better: msgspec skips what a type does not have, and `msgspec.Raw` is checked but not decoded. The rest is counted.
"""

from collections.abc import Iterator

MAX_OBJECTS = 1 << 16  # lists, objects and texts; the name of a member is a text
MAX_NUMBERS = 1 << 19  # numbers, booleans and nulls
SLICE_BYTES = 1 << 20  # counted at once: up to 10 ms


class TooManyValues(ValueError):
    """What JSON has too much of, as the end of a sentence."""


def check(data: bytes, max_objects: int = MAX_OBJECTS, max_numbers: int = MAX_NUMBERS) -> None:
    """Counts what decoding `data` would make, in time that is linear in its bytes: below 10 ns for each.

    What is no JSON is counted up to its first error, where a decoder stops.

    Raises:
        TooManyValues: there is more than the limits.
    """
    for _ in slices(data, max_objects, max_numbers):
        pass


def slices(data: bytes, max_objects: int = MAX_OBJECTS, max_numbers: int = MAX_NUMBERS) -> Iterator[None]:
    """As `check`, with a stop after each slice, in which others may run. Raises TooManyValues, as `check` does."""
    counts = _Counts(max_objects, max_numbers)
    for begin in range(0, len(data), SLICE_BYTES):
        counts.add(data[begin : begin + SLICE_BYTES])
        yield


class _Counts:
    """Of the slices so far: how many texts there are, and what is outside of texts."""

    def __init__(self, max_objects: int, max_numbers: int) -> None:
        self._max_objects, self._max_numbers = max_objects, max_numbers
        self._containers = self._commas = self._quotes = 0
        self._escape = b""  # a backslash at the end of a slice, whose character is in the next one

    def add(self, data: bytes) -> None:
        """Counts a slice. Raises TooManyValues."""
        data = self._escape + data
        self._escape = b"\\" if _ends_in_escape(data) else b""
        if b"\\" in data:
            data = data.removesuffix(self._escape).replace(rb"\\", b"").replace(rb"\"", b"")
        in_text, quotes = self._quotes % 2, data.count(b'"')
        self._quotes += quotes
        self._check()  # before an object is made for each text
        outside = b"".join(data.split(b'"')[in_text::2]) if in_text or quotes else data
        self._containers += outside.count(b"[") + outside.count(b"{")
        self._commas += outside.count(b",")
        self._check()

    def _check(self) -> None:
        objects = self._containers + (self._quotes + 1) // 2
        if objects > self._max_objects or self._commas > self._max_numbers:
            limits = f"{self._max_objects} lists, objects and texts, or {self._max_numbers} numbers"
            raise TooManyValues(f"has more than {limits}")


def _ends_in_escape(data: bytes) -> bool:
    return (len(data) - len(data.rstrip(b"\\"))) % 2 == 1
