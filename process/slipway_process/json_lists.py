"""JSON of long lists, made piece by piece: no step of it holds the interpreter, or the memory of all items."""

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any

import msgspec

PIECE = 256  # items; with 20 alternatives each they take some milliseconds
_encoder = msgspec.json.Encoder()


def json_list(items: Iterable[Any], piece: int = PIECE) -> list[Any] | msgspec.Raw:
    """Items that are made one after the other: as a list, or as JSON where they fill a piece."""
    left = iter(items)
    first = list(islice(left, piece))
    if len(first) < piece:
        return first
    return joined(chain([first], iter(lambda: list(islice(left, piece)), [])))


def joined(pieces: Iterable[Sequence[Any]]) -> msgspec.Raw:
    """The JSON of one list with the items of all pieces. None of them is empty."""
    return msgspec.Raw(b"[" + b",".join(_encoder.encode(piece)[1:-1] for piece in pieces) + b"]")
