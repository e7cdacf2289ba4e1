"""Streams that can go on elsewhere: how far one has come, said beside each event, and how another server takes it up.

What the gateway and the server say to each other about it stands in docs/contracts.md.
"""

import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from zlib import crc32

from aiohttp import web

from .bodies import body_of
from .errors import ApiError, invalid
from .schemas import Sampling
from .tenant import Tenants

RESUMABLE = "X-Slipway-Resumable"
STREAM = "X-Slipway-Stream"
RESUME = "X-Slipway-Resume"
RESUME_BYTES = "X-Slipway-Resume-Bytes"
RETURNS = "X-Slipway-Returns"

_RESUME = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{32})\.([0-9]{1,9})\.([0-9a-f]{8})")
_SIZE = re.compile(r"[0-9]{1,10}")
_TOKENS = re.compile(rb"(?:[0-9]{1,10}(?:,[0-9]{1,10})*)?,?")
_SEEDS = 1 << 64


@dataclass(frozen=True, slots=True)
class Identity:
    """What must stay the same when another server goes on: the draw's seed, and what clients see in each chunk."""

    seed: int
    created: int = field(default_factory=lambda: int(time.time()))  # Unix seconds
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __str__(self) -> str:
        return f"{self.seed % _SEEDS:x}-{self.created:x}-{self.id}"


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a stream is taken up: its events up to `position` are with the client.

    `tokens` are those behind these events. Without them the same tokens are generated once more, unsent.
    """

    identity: Identity
    position: int
    check: int
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's body, and what its headers say about resuming and whose it is.

    `returns`: its client comes back when it loses its connection, and wants its slot kept meanwhile.
    """

    body: bytes
    resumable: bool = False
    resume: Resume | None = None
    tenant: str = ""
    path: str = ""
    returns: bool = False

    @property
    def resumed(self) -> tuple[int, ...]:
        """Tokens of the answer that are there already."""
        return self.resume.tokens if self.resume else ()

    @property
    def told(self) -> tuple[int, ...]:
        """Of these, the ones whose events the client has: what goes with the others must be computed anew."""
        return self.resume.tokens[: self.resume.position] if self.resume else ()

    @property
    def digest(self) -> bytes:
        """Of what decides over the answer, but for the seed: equal for one who asks the same again, and nobody else."""
        return blake2b(b"\0".join((self.path.encode(), self.tenant.encode(), self.body)), digest_size=16).digest()

    def identity(self, sampling: Sampling) -> Identity:
        """Of the stream, new or taken up; from here on the sampling has its seed."""
        if self.resume:
            sampling.seed = self.resume.identity.seed
            return self.resume.identity
        return Identity(sampling.settle_seed())

    def progress(self, identity: Identity, *, streamed: bool, prompts: int = 1) -> "Progress | None":
        """Of a stream that can go on elsewhere: one prompt has one order of events, several have none."""
        if self.resume and not (streamed and prompts == 1):
            raise invalid("Only a stream that answers one prompt can be taken up again.", "stream")
        return Progress(identity, self.resume) if streamed and prompts == 1 and self.resumable else None


async def asked(http: web.Request, tenants: Tenants) -> Asked:
    body = await body_of(http)
    return read(http.headers, body, http.path, tenants.of(http.headers))


def read(headers: Mapping[str, str], body: bytes, path: str = "", tenant: str = "") -> Asked:
    where, returns = headers.get(RESUME), RETURNS in headers
    if where is None:
        return Asked(body, RESUMABLE in headers, tenant=tenant, path=path, returns=returns)
    found = _RESUME.fullmatch(where)
    size = headers.get(RESUME_BYTES, "0")
    if not found or not _SIZE.fullmatch(size) or int(size) > len(body):
        raise invalid(f"{RESUME} and {RESUME_BYTES} do not name a place in a stream.")
    seed, created, name, position, check = found.groups()
    cut = len(body) - int(size)
    resume = Resume(Identity(int(seed, 16), int(created, 16), name), int(position), int(check, 16), _tokens(body[cut:]))
    return Asked(body[:cut], True, resume, tenant, path, returns)


def _tokens(text: bytes) -> tuple[int, ...]:
    if not _TOKENS.fullmatch(text):
        raise invalid("The tokens to go on from are not numbers.")
    tokens = tuple(int(token) for token in text.split(b",") if token)
    if any(not 0 <= token < 1 << 32 for token in tokens):
        raise invalid("The tokens to go on from are not token ids.")
    return tokens


class Progress:
    """How far a stream has come. A position is the number of tokens behind an event; the last event has one more."""

    def __init__(self, identity: Identity, resume: Resume | None = None) -> None:
        self.identity = identity
        self.position = 0
        self.wrong = False  # what came is not the stream that was to be taken up
        self._check = 0
        self._unsaid: list[int] = []
        # An opening event has position 0: nothing was sent before it.
        self._sent, self._expected = (resume.position, resume.check) if resume else (-1, 0)
        self._known = len(resume.tokens) if resume else 0

    def saw(self, token: int) -> None:
        self._check = crc32(token.to_bytes(4, "little"), self._check)
        self._move()
        if self.position > self._known:
            self._unsaid.append(token)

    def ended(self) -> None:
        """Before an event that comes after the last token's."""
        self._move()

    @property
    def repeats(self) -> bool:
        """Whether tokens that its client has are computed once more: those that nobody told."""
        return self._known < self._sent

    @property
    def fresh(self) -> bool:
        """Whether the event at this position is one that the client does not have."""
        return self.position > self._sent

    def mark(self) -> bytes:
        """The line beside the next event: its position, a checksum of all tokens, and the tokens since the last."""
        tokens = ",".join(map(str, self._unsaid))
        self._unsaid.clear()
        return f": {self.position}.{self._check:08x} {tokens}\n".encode()

    def finish(self) -> None:
        self._refuse(wrong=self.position < self._sent)

    def _move(self) -> None:
        self.position += 1
        self._refuse(wrong=self.position == self._sent and self._check != self._expected)

    def _refuse(self, *, wrong: bool) -> None:
        if wrong:
            self.wrong = True
            raise gone()


def gone() -> ApiError:
    return ApiError(
        410,
        "This stream cannot be taken up again: the same request does not lead to the same answer here. Ask anew.",
        code="stream_gone",
    )
