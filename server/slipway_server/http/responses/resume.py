"""Resumable streams: each event carries its position, and another server can continue the stream from there.

The protocol between the gateway and the server is described in docs/contracts.md.
"""

import re
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from zlib import crc32

from aiohttp import web

from slipway_contracts.headers import RESUMABLE, RESUME, RESUME_BYTES, RETURNS
from slipway_process.serving.bodies import body_of
from slipway_process.serving.errors import HttpError, invalid
from slipway_process.serving.tenant import Tenants

_RESUME = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{32})\.([0-9]{1,9})\.([0-9a-f]{8})")
_SIZE = re.compile(r"[0-9]{1,10}")
_TOKENS = re.compile(rb"(?:[0-9]{1,10}(?:,[0-9]{1,10})*)?,?")
_SEEDS = 1 << 64
# As much as a gateway keeps of a stream. They are read where they stop other requests.
MAX_TOKEN_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Identity:
    """What stays the same when another server continues: the sampling seed, and the fields that each chunk repeats."""

    seed: int
    created: int = field(default_factory=lambda: int(time.time()))  # Unix seconds
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __str__(self) -> str:
        return f"{self.seed % _SEEDS:x}-{self.created:x}-{self.id}"


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a stream is resumed: its client has the events up to `position`.

    `tokens` are the output tokens that are known. Without them the same tokens are generated again, and not sent.
    """

    identity: Identity
    position: int
    check: int
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request's body, and what its headers contain about resuming and its tenant.

    `returns`: its client resumes when it loses its connection, and wants its slot kept until then.
    """

    body: bytes
    resumable: bool = False
    resume: Resume | None = None
    tenant: str = ""
    path: str = ""
    returns: bool = False

    @property
    def resumed_tokens(self) -> tuple[int, ...]:
        """Output tokens that are already known."""
        return self.resume.tokens if self.resume else ()

    @property
    def delivered_tokens(self) -> tuple[int, ...]:
        """Those of `resumed_tokens` whose events the client has. Log probabilities of the others are computed again."""
        return self.resume.tokens[: self.resume.position] if self.resume else ()

    @property
    def digest(self) -> bytes:
        """Digest of all that determines the answer but the seed: equal only for the same request of the same tenant."""
        return blake2b(b"\0".join((self.path.encode(), self.tenant.encode(), self.body)), digest_size=16).digest()

    def stream_identity(self, seed: int | None) -> Identity:
        """The resumed stream's identity, or a new one with the client's seed or a random one."""
        if self.resume:
            return self.resume.identity
        return Identity(secrets.randbits(63) if seed is None else seed)

    def track_progress(self, identity: Identity, *, streamed: bool, prompts: int = 1) -> "StreamPosition | None":
        """The position of a stream that can be resumed; None for others.

        Events of several prompts come in no fixed order: HttpError for a request that resumes such a stream.
        """
        if self.resume and not (streamed and prompts == 1):
            raise invalid("Only a stream that answers one prompt can be taken up again.", "stream")
        return StreamPosition(identity, self.resume) if streamed and prompts == 1 and self.resumable else None


async def read_request(http: web.Request, tenants: Tenants) -> IncomingRequest:
    body = await body_of(http)
    return parse_request(http.headers, body, http.path, tenants.of(http.headers))


def parse_request(headers: Mapping[str, str], body: bytes, path: str = "", tenant: str = "") -> IncomingRequest:
    where, returns = headers.get(RESUME), RETURNS in headers
    if where is None:
        return IncomingRequest(body, RESUMABLE in headers, tenant=tenant, path=path, returns=returns)
    found = _RESUME.fullmatch(where)
    size = headers.get(RESUME_BYTES, "0")
    if not found or not _SIZE.fullmatch(size) or int(size) > len(body):
        raise invalid(f"{RESUME} and {RESUME_BYTES} do not name a place in a stream.")
    if int(size) > MAX_TOKEN_BYTES:
        raise invalid(f"{RESUME_BYTES} is {size}; the most is {MAX_TOKEN_BYTES}.")
    seed, created, name, position, check = found.groups()
    cut = len(body) - int(size)
    resume = Resume(Identity(int(seed, 16), int(created, 16), name), int(position), int(check, 16), _tokens(body[cut:]))
    return IncomingRequest(body[:cut], True, resume, tenant, path, returns)


def _tokens(text: bytes) -> tuple[int, ...]:
    if not _TOKENS.fullmatch(text):
        raise invalid("The tokens to go on from are not numbers.")
    tokens = tuple(int(token) for token in text.split(b",") if token)
    if any(not 0 <= token < 1 << 32 for token in tokens):
        raise invalid("The tokens to go on from are not token ids.")
    return tokens


class StreamPosition:
    """How far a stream has come. An event's position is the number of tokens so far; the last event has one more."""

    def __init__(self, identity: Identity, resume: Resume | None = None) -> None:
        self.identity = identity
        self.position = 0
        self.starts_over = False  # no buffer and no tokens are there: the answer is generated from its beginning again
        self.mismatched = False  # the tokens are not those of the stream that is resumed
        self._check = 0
        self._pending_tokens: list[int] = []
        # An opening event has position 0: nothing was sent before it.
        self._sent, self._expected = (resume.position, resume.check) if resume else (-1, 0)
        self._known = len(resume.tokens) if resume else 0

    def add_token(self, token: int) -> None:
        self._check = crc32(token.to_bytes(4, "little"), self._check)
        self._advance()
        if self.position > self._known:
            self._pending_tokens.append(token)

    def add_end(self) -> None:
        """Call it before an event that comes after the last token's."""
        self._advance()

    @property
    def recomputes(self) -> bool:
        """Whether tokens that its client has must be generated again, because the request did not carry them."""
        return self._known < self._sent

    @property
    def is_new(self) -> bool:
        """Whether the client lacks the event at this position."""
        return self.position > self._sent

    def comment(self) -> bytes:
        """The comment before the next event: its position, a checksum of all tokens, and the tokens since the last."""
        tokens = ",".join(map(str, self._pending_tokens))
        self._pending_tokens.clear()
        return f": {self.position}.{self._check:08x} {tokens}\n".encode()

    def finish(self) -> None:
        self._check_match(mismatched=self.position < self._sent)

    def _advance(self) -> None:
        self.position += 1
        self._check_match(mismatched=self.position == self._sent and self._check != self._expected)

    def _check_match(self, *, mismatched: bool) -> None:
        if mismatched:
            self.mismatched = True
            raise stream_gone()


def stream_gone() -> HttpError:
    return HttpError(
        410,
        "This stream cannot be taken up again: the same request does not lead to the same answer here. "
        "Send the request again, without Last-Event-ID.",
        code="stream_gone",
    )
