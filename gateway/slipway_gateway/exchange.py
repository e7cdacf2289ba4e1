"""One request on the gateway's other side: what is asked, what came of each attempt, and what is left to try."""

from dataclasses import dataclass, field

import aiohttp
from multidict import CIMultiDict

from .budget import Account, unlimited
from .fate import Fate
from .lease import Lease
from .router import Target
from .samples import stratum
from .wire.answers import WITHOUT_TEXT
from .wire.sse import CONTENT_TYPE

FIRST_PAUSE_S = 0.05


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


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an attempt may be repeated elsewhere. `answer` is what to relay when nothing better comes."""

    reason: str
    sent: bool = True
    answer: Answer | None = None
    crashed: bool = False  # the engine died with the request in flight

    @property
    def busy(self) -> bool:
        return self.reason == "429"


@dataclass(slots=True)
class Effort:
    """What was tried for one request so far."""

    hold_until: float
    limit: int
    pause_s: float = FIRST_PAUSE_S
    attempts: int = 0
    spent: int = 0
    sent_s: float = 0.0  # when the last attempt began
    tried: set[str] = field(default_factory=set)
    last: Fault | None = None
    resumes: bool = False
    wakes: bool = False  # it waited for a deployment to wake
    fate: Fate | None = None
    suspect: bool = False  # an engine died with it in flight
    trial_until: float = 0.0  # it waits for an endpoint of its own until then

    def suspects(self, trial_until: float) -> None:
        """From here on it is tried where no other suspect is, for as long as that is to be had in time."""
        self.suspect, self.trial_until = True, trial_until

    def again(self, broken_url: str, hold_until: float) -> None:
        self.spent += 1
        self.hold_until, self.pause_s, self.last = hold_until, FIRST_PAUSE_S, None
        self.tried = {broken_url}

    def note(self, url: str, fault: Fault) -> None:
        self.attempts += 1
        self.tried.add(url)
        self.last = fault
        # A server that says no costs a stream nothing but time; one that it kills may not be followed by many. Nor does
        # it count against a wake: endpoints may still be those of pods that left when the deployment fell asleep.
        self.spent += fault.sent and not ((self.resumes or self.wakes) and fault.answer)

    @property
    def waits_in_vain(self) -> bool:
        """A new request is told at once that all servers are busy; one that is half answered waits."""
        return self.last is not None and self.last.busy and not self.resumes
