"""One client process of the fuzzer: sends what is drawn, and notes every answer that a stranger must never see."""

import hashlib
import http.client
import json
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from .frames import connections
from .heads import heads
from .requests import Request, Schemas

PATIENCE_S = 60.0  # a request that has no end by then has none
FRAMES_PATIENCE_S = 0.2
HEAD_PATIENCE_S = 1.0  # half a request is left by its client, not waited for
KEPT = 20
RUN = 200  # requests drawn by one seed: Hypothesis looks back at all of a run
CHECK_EVERY = 50
PROBE = {"model": "m", "prompt": "And it came to pass", "max_tokens": 8, "temperature": 0, "seed": 1}
BAD_HEAD = (
    b"Invalid header value"  # the server's HTTP library, which only gateways connect to; they have their own response
)


Pieces = tuple[bytes, ...]  # of what a connection of HTTP/2 gets


@dataclass
class Found:
    """What a worker saw. `wrong`: the first few, with the bytes that caused them; `digests`: of distinct requests."""

    sent: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    fields: set[str] = field(default_factory=set)
    digests: set[bytes] = field(default_factory=set)
    internal: int = 0  # answers of 500
    endless: int = 0
    malformed: int = 0  # errors that are not of OpenAI's shape
    disturbed: int = 0  # times that a sound request of another client got another answer
    wrong: list[str] = field(default_factory=list)

    def note(self, kind: str, what: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        self.wrong = [*self.wrong, f"{kind}: {what}"][:KEPT]

    def add(self, other: "Found") -> None:
        for name in ("sent", "internal", "endless", "malformed", "disturbed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.endings += other.endings
        self.fields |= other.fields
        self.digests |= other.digests
        self.wrong = [*self.wrong, *other.wrong][:KEPT]


class Worker:
    """Args: `urls`: of the server and of a gateway before it; `document`: the server's OpenAPI document;
    `patience_s`: how long a sound request may find no answer; `grpc`: host and port of the gateway's gRPC."""

    def __init__(
        self,
        urls: list[str],
        document: dict[str, Any],
        first_seed: int,
        patience_s: float = PATIENCE_S,
        grpc: str = "",
    ) -> None:
        self._patience_s, self._grpc = patience_s, grpc
        self._urls = [urlsplit(url).netloc for url in urls]
        self._schemas = Schemas(document, "m")
        self._seed = first_seed
        self._expected = ""
        self.found = Found()

    def run(self, until_s: float, enough: Callable[[Found], bool] = lambda _: False) -> Found:
        """Until this moment of the monotonic clock, or until it has found enough."""
        self._expected = self._probe(until_s)
        while time.monotonic() < until_s and not enough(self.found):
            self._seed += 1
            self._some(until_s)
        return self.found

    def _some(self, until_s: float) -> None:
        @seed(self._seed)
        @settings(
            max_examples=RUN, database=None, deadline=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(st.sampled_from(self._urls), st.one_of(self._kinds()))
        def one(where: str, what: Request | bytes | Pieces) -> None:
            if time.monotonic() < until_s:
                self._send(where, what)

        one()

    def _kinds(self) -> list[st.SearchStrategy[Any]]:
        raw = [heads(), connections()] if self._grpc else [heads()]
        return [*(2 * len(raw) * [self._schemas.requests()]), *raw]

    def _send(self, where: str, what: Request | bytes | Pieces) -> None:
        found = self.found
        found.sent += 1
        found.digests.add(hashlib.blake2b(_bytes_of(what), digest_size=8).digest())
        if isinstance(what, bytes):
            found.endings[_send_raw(where, what, found)] += 1
        elif isinstance(what, tuple):
            found.endings[_send_frames(self._grpc, what)] += 1
        else:
            found.fields.update(what.fields)
            found.endings[_send_request(where, what, found)] += 1
        if (
            found.sent % CHECK_EVERY == 0
            and (text := self._probe(time.monotonic() + self._patience_s)) != self._expected
        ):
            found.note("disturbed", f"{text!r} in place of {self._expected!r}")

    def _probe(self, until_s: float) -> str:
        """The text of a sound greedy request, which no request of another client may change."""
        last = "never answered"
        while time.monotonic() < until_s:
            connection = http.client.HTTPConnection(self._urls[0], timeout=PATIENCE_S)
            try:
                connection.request("POST", "/v1/completions", json.dumps(PROBE), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
                if answer.status == 200:
                    return str(json.loads(text)["choices"][0]["text"])
                last = f"{answer.status} {text[:200]!r}"
            except OSError as error:
                last = repr(error)
            finally:
                connection.close()
            time.sleep(0.2)
        return last


def _bytes_of(what: Request | bytes | Pieces) -> bytes:
    if isinstance(what, Request):
        return f"{what.path}{what.headers}".encode() + what.body
    return what if isinstance(what, bytes) else b"".join(what)


def _send_request(where: str, what: Request, found: Found) -> str:
    connection = http.client.HTTPConnection(where, timeout=PATIENCE_S)
    try:
        if what.leaves_after_s is not None:
            connection.timeout = 10.0
        _write(connection, what)
        if what.leaves_after_s is not None:
            time.sleep(what.leaves_after_s)
            return "left"
        answer = connection.getresponse()
        return _judged(answer.status, answer.read(), f"{what.path} {what.headers} {what.body[:600]!r}", found)
    except TimeoutError:
        found.note("endless", f"{what.path} {what.headers} {what.body[:600]!r}")
        return "endless"
    except (OSError, http.client.HTTPException):
        # A server may close where a head makes no sense; a request that it understood has an answer.
        return "closed"
    finally:
        connection.close()


def _write(connection: http.client.HTTPConnection, what: Request) -> None:
    connection.putrequest(what.method, what.path, skip_accept_encoding=True)
    given = {name.lower() for name, _ in what.headers}
    for name, value in what.headers:
        # The library's own checks are not what is tested: header values go out as bytes, whatever they hold.
        connection._buffer.append(f"{name}: {value}".encode("latin-1"))  # type: ignore[attr-defined]
    if "content-type" not in given:
        connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(len(what.body)))
    connection.endheaders(what.body)


def _judged(status: int, body: bytes, what: str, found: Found) -> str:
    if status == 500 or (status > 500 and status not in (501, 502, 503, 504)):
        found.note("internal", f"{status} {body[:300]!r} for {what}")
    elif status >= 400 and not _is_error(body) and not body.startswith(BAD_HEAD):
        found.note("malformed", f"{status} {body[:300]!r} for {what}")
    elif b'"code":"internal_error"' in body.replace(b" ", b""):
        found.note("internal", f"in a stream: {body[-300:]!r} for {what}")
    return str(status)


def _is_error(body: bytes) -> bool:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(error, dict) and {"message", "type", "param", "code"} <= error.keys()


def _send_raw(where: str, what: bytes, found: Found) -> str:
    host, _, port = where.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=HEAD_PATIENCE_S) as one:
            one.sendall(what)
            start = one.recv(4096)
    except TimeoutError:
        return "raw: incomplete"
    except OSError:
        return "raw: closed"
    status = start[9:12].decode("latin-1")
    if status == "500":
        found.note("internal", f"{start[:300]!r} for {what[:600]!r}")
    return f"raw: {status}" if status else "raw: closed"


def _send_frames(where: str, pieces: Pieces) -> str:
    """All pieces, then the client leaves without a word; how far the gateway went along."""
    host, _, port = where.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=FRAMES_PATIENCE_S) as one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces:
                one.sendall(piece)
            one.recv(4096)  # its settings
            return "frames: open" if one.recv(4096) else "frames: closed"
    except TimeoutError:
        return "frames: open"
    except OSError:
        return "frames: closed"
