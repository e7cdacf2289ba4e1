"""Lines of JSON that form a chain: each has its number and the SHA-256 of the line before it.

So a check finds a line that was changed, removed or inserted. It does not find that lines were cut off at the end, or
that the chain was written again from some line on. Against both, keep the digest of a later line at another place.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, BinaryIO

FIRST_PREV = "0" * 64  # of the first line
MAX_LINE_BYTES = 64 << 10


class BrokenChain(Exception):
    """The first line that does not fit. `line`: its number in the file, from 1."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line


def digest(line: bytes) -> str:
    """SHA-256 of a line without its end, in hexadecimal: `prev` of the next line."""
    return hashlib.sha256(line).hexdigest()


def link(fields: Mapping[str, Any], seq: int, prev: str) -> bytes:
    """A line without its end. It is ASCII, so that no text in it begins another line.

    Raises:
        ValueError: the line would be too long.
    """
    line = json.dumps({"seq": seq, "prev": prev, **fields}, separators=(",", ":")).encode()
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a line has at most {MAX_LINE_BYTES} bytes, and this one has {len(line)}")
    return line


class Chain:
    """A chain that is read line by line. `seq`, `head`: number and digest of the last line."""

    def __init__(self) -> None:
        self.seq, self.head = 0, FIRST_PREV

    def follow(self, line: bytes) -> dict[str, Any]:
        """The fields of the next line, which is given with its end.

        Raises:
            BrokenChain: it is not the next line of the chain.
        """
        number = self.seq + 1
        if not line.endswith(b"\n"):
            raise BrokenChain(number, f"it has no end, or more than {MAX_LINE_BYTES} bytes")
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise BrokenChain(number, "it is no JSON object")
        if fields.get("seq") != number or isinstance(fields["seq"], bool):
            raise BrokenChain(number, f"seq is {str(fields.get('seq'))[:40]}, and {number} was expected")
        if fields.get("prev") != self.head:
            raise BrokenChain(number, f"prev is not the SHA-256 of line {number - 1}, {self.head}")
        self.seq, self.head = number, digest(line[:-1])
        return fields


def read_line(file: BinaryIO) -> bytes:
    """The next line with its end; empty after the last one. A line that is too long comes in parts, which never fit."""
    return file.readline(MAX_LINE_BYTES + 1)
