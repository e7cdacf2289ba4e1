"""The request that every attempt sends to an endpoint, and the response that comes back."""

from dataclasses import dataclass, field

import aiohttp
from multidict import CIMultiDict

from ..balancing.attempt import Lease
from ..judging.outcome import Fate
from ..judging.samples import stratum
from ..limits.budget import Account, unlimited
from ..routing.router import Target
from ..wire.answers import WITHOUT_TEXT
from ..wire.sse import CONTENT_TYPE


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked of an endpoint; the same bytes for every attempt.

    `model`: as the client wrote it. `route`: whose it was when the request came; it stays that one's to its end, also
    where the name becomes another's meanwhile.
    `revision`: of this one only. `preferred`: of this one while it has an endpoint, whatever its weight.
    `stream`: the client asked for one. `wants_json`: for an answer whose text is JSON. `holder`: tag of the endpoint
    that may have the stream still. `tokens`: of the answer, for the server that takes it up, behind the body.
    `client`: who shares of the gateway, and evidence of the judge, are counted for. `excused`: kinds of trouble that
    the request itself asks for. `account`: what this request holds of the gateway's memory.
    """

    model: str
    key: str
    path_qs: str
    headers: CIMultiDict[str]
    body: bytes
    revision: str = ""
    preferred: str = ""
    stream: bool = False
    wants_json: bool = False
    holder: str = ""
    tokens: bytes = b""
    client: str = ""
    excused: frozenset[str] = frozenset()
    forwarded: tuple[str, ...] = ()  # credentials of the client's that its server gets
    account: Account = field(default_factory=unlimited)
    route: str = ""

    @property
    def whose(self) -> str:
        """What the route is found by."""
        return self.route or self.model

    @property
    def path(self) -> str:
        return self.path_qs.partition("?")[0]

    @property
    def by_split(self) -> bool:
        """Whether weights alone choose its revision."""
        return not (self.revision or self.preferred)

    @property
    def stratum(self) -> str:
        return stratum(len(self.body), stream=self.stream)

    @property
    def writes_text(self) -> bool:
        return self.path not in WITHOUT_TEXT


def outcome_of(status: int) -> str:
    """What a request comes to that is answered with this status."""
    if status < 400:
        return "ok"
    if status == 429:
        return "refused"
    return "upstream_error" if status >= 500 else "client_error"


@dataclass(slots=True)
class Answer:
    """An answer whose first byte is at hand; `rest` is None when `start` is all of it."""

    target: Target
    status: int
    headers: CIMultiDict[str]
    start: bytes
    rest: aiohttp.ClientResponse | None = None
    lease: Lease | None = None

    @property
    def fate(self) -> Fate | None:
        return self.lease.fate if self.lease else None

    @property
    def length(self) -> int | None:
        """Bytes of the body where they are known."""
        return len(self.start) if self.rest is None else self.rest.content_length

    @property
    def streams_events(self) -> bool:
        return self.headers.get("Content-Type", "").startswith(CONTENT_TYPE)

    def close(self) -> None:
        # Closing an unfinished upstream response closes its connection: that is how the server learns of a cancel.
        if self.rest is not None:
            self.rest.close()
        if self.lease is not None:
            self.lease.release()
