"""Bodies that are as large as a process takes, and what its neighbours notice while it reads one.

A standing test of each process has a list of them: for each of its endpoints those that cost as much as they can.
"""

import gzip
import http.client
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from testkit.load.watch import Noticed, Watch, best

PAUSE_S, GROWTH_BYTES = 0.1, 256 << 20
ATTEMPTS = 3
TIMEOUT_S = 240.0
PLAIN, GZIP, CHUNKED = ENCODINGS = ("plain", "gzip", "chunked")
CHUNK_BYTES = 16
PROSE = "And God called the light day, and the darkness night. "
MODEL = "chat"


@dataclass(frozen=True, slots=True)
class LargeBody:
    """`make` gives a body of at most so many bytes."""

    name: str
    path: str
    make: Callable[[int], bytes]
    headers: Mapping[str, str] = field(default_factory=dict)


def filled(before: str, piece: str, after: str, separator: str = "") -> Callable[[int], bytes]:
    """JSON that is full of one piece."""

    def make(size_bytes: int) -> bytes:
        each = (piece + separator).encode()
        count = (size_bytes - len(before.encode()) - len(after.encode()) - len(piece.encode())) // len(each)
        return before.encode() + each * count + piece.encode() + after.encode()

    return make


def field_of(name: str, piece: str, **others: Any) -> Callable[[int], bytes]:
    """A body with one field that is a long text."""
    return filled(f'{head_of(others)}{json.dumps(name)}:"', piece, '"}')


def items_of(name: str, piece: str, **others: Any) -> Callable[[int], bytes]:
    """A body with one field that is a list of equal things."""
    return filled(f"{head_of(others)}{json.dumps(name)}:[", piece, "]}", ",")


def numbered(name: str, piece: str, **others: Any) -> Callable[[int], bytes]:
    """A body with one field that is an object of many keys; name "" puts them into the body itself."""

    def make(size_bytes: int) -> bytes:
        before, after = (head_of(others), "}") if not name else (f"{head_of(others)}{json.dumps(name)}:{{", "}}")
        each = len(piece.format(1_000_000)) + 1
        count = (size_bytes - len(before) - len(after)) // each
        keys = ",".join(piece.format(1_000_000 + number) for number in range(count))
        return f"{before}{keys}{after}".encode()

    return make


def head_of(others: Mapping[str, Any]) -> str:
    return json.dumps({"model": MODEL} | others)[:-1] + ", "


def in_chunks(data: bytes) -> bytes:
    """The data as HTTP's chunked encoding has it, in many chunks."""
    pieces = (data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Target:
    """A process that takes bodies of at most `limit_bytes` at `url`. `headers`: of a request for a path."""

    url: str
    limit_bytes: int
    watch: Watch
    headers: Callable[[str], Mapping[str, str]] = lambda path: {}

    def check(self, body: LargeBody, encoding: str) -> None:
        """Neighbours notice little of this body, at the best of some attempts."""
        attempts: list[Noticed] = []
        while len(attempts) < ATTEMPTS and (not attempts or best(attempts).pause_s > PAUSE_S):
            attempts.append(self.watch.during(lambda: self.send(body, encoding)))
        noticed = best(attempts)
        assert not noticed.troubles, (body.name, noticed)
        assert noticed.pause_s < PAUSE_S, (body.name, noticed)
        assert noticed.growth_bytes < GROWTH_BYTES, (body.name, noticed)

    def check_some(self, bodies: Sequence[LargeBody], count: int, seed: int, encodings: Sequence[str]) -> None:
        chance = random.Random(seed)
        for body in chance.sample(bodies, count):
            self.check(body, chance.choice(encodings))

    def send(self, body: LargeBody, encoding: str) -> int:
        """The status of the answer; 0 where the process closed the connection first."""
        data = body.make(self.limit_bytes)
        headers = {"Content-Type": "application/json", **self.headers(body.path), **body.headers}
        if encoding == GZIP:
            data = gzip.compress(data, 1)
            headers["Content-Encoding"] = "gzip"
        if encoding == CHUNKED:
            data = in_chunks(data)
            headers["Transfer-Encoding"] = "chunked"
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", body.path, data, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except ConnectionError:
            return 0
        finally:
            connection.close()
