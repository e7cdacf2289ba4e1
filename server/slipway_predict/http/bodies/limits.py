"""How much of a body is read, and of an answer written, where requests are served (pure).

Each of them is counted before the work that it stands for. What is above the limits HERE is done in a process of its
own, whose memory and time are bounded; what is above ASIDE is refused.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...tensors import BYTES, elements_of

MAX_ROWS = 65_536
MAX_ANSWER_BYTES = 64 << 20
MAX_TEXTS = 1 << 16  # elements of the datatype BYTES in all tensors of a request
_MARKS = (b",", b"[", b"{")
_FIRST_BYTES = 1 << 16  # most bodies with too many values show it there
# Making an integer costs the square of its digits, so few long ones cost as much as many values. A double has at most
# 17 digits that count.
_LONG_NUMBER, _DIGITS_AS_ZEROS = b"0" * 64, bytes.maketrans(b"123456789", b"0" * 9)


class TooLarge(Exception):
    """What is above the limits, in one sentence. `param`: its field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Limits:
    """`values`: of JSON, and bytes of typed contents in protobuf. `texts`: elements of BYTES. `plain_bytes`: of a body
    that is decompressed."""

    values: int
    rows: int
    texts: int
    plain_bytes: int

    def check_json(self, body: bytes) -> None:
        """Marks and digits within texts count too: there may be others.

        Raises TooLarge for too many values, and for a number so long that its digits count as values.
        """
        if len(body) <= self.values:
            return
        if _marks(body[:_FIRST_BYTES]) > self.values or (len(body) > _FIRST_BYTES and _marks(body) > self.values):
            raise TooLarge(f"The body has more than {self.values} values.")
        if _LONG_NUMBER in body.translate(_DIGITS_AS_ZEROS):
            raise TooLarge(f"The body has a number of {len(_LONG_NUMBER)} digits or more.")

    def check_values(self, count: int) -> None:
        if count > self.values:
            raise TooLarge(f"There are {count} values; {self.values} is the limit.")

    def check_rows(self, count: int, param: str | None = None) -> None:
        if count > self.rows:
            raise TooLarge(f"There are {count} rows; {self.rows} is the limit.", param)

    def check_texts(self, tensors: Iterable[Any]) -> None:
        """Of all that have the name, datatype and shape of a tensor. Raises TensorError for an impossible shape."""
        count = 0
        for tensor in tensors:
            if tensor.datatype == BYTES:
                count += elements_of(tuple(tensor.shape), tensor.name)
                if count > self.texts:
                    message = f"The tensors have {count} texts together; {self.texts} is the limit."
                    raise TooLarge(message, tensor.name)


HERE = Limits(values=1 << 14, rows=512, texts=1 << 12, plain_bytes=1 << 20)
ASIDE = Limits(values=sys.maxsize, rows=MAX_ROWS, texts=MAX_TEXTS, plain_bytes=sys.maxsize)


def _marks(body: bytes) -> int:
    """At least one less than the values in it."""
    return sum(map(body.count, _MARKS))
