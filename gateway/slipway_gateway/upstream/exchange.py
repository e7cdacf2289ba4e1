"""The request that every attempt sends to an endpoint, and the response that comes back."""

import functools
from typing import Protocol

import aiohttp
import msgspec
from msgspec.structs import force_setattr
from multidict import CIMultiDict, MultiMapping

from ..balancing.attempt import Attempt
from ..balancing.prompt_blocks import PromptBlocks
from ..judging.outcome import OutcomeRecorder
from ..judging.samples import stratum
from ..limits.budget import Account, unlimited
from ..quotas.meter import Meter
from ..quotas.usage import Usage
from ..routing.experiments import ChosenArm
from ..routing.fallbacks import Fallback
from ..routing.guards import BoundGuard
from ..routing.router import RouteEndpoint
from ..wire.isolation import Isolation
from ..wire.responses import WITHOUT_MODEL, is_text_path
from ..wire.sse import CONTENT_TYPE
from .adapters import AdapterCall
from .direct import DirectResponse
from .provider_stream import ProviderStream

ServerReply = aiohttp.ClientResponse | DirectResponse
Reply = ServerReply | ProviderStream


class Stickiness(msgspec.Struct, frozen=True):
    """Where the turn before a request was answered, and where the request goes while that serves; empty: nowhere.

    `route`: namespace/name of the deployment.
    """

    route: str = ""
    revision: str = ""


class Capture(Protocol):
    """What keeps a copy of a response while it is relayed."""

    def begin(self, response: "UpstreamResponse", sent: CIMultiDict[str]) -> None:
        """A response begins. `sent`: headers for the client, which it may change."""
        ...

    def add(self, data: bytes) -> None:
        """The next bytes, of a stream whole events without the ids that the gateway adds."""
        ...

    def end(self, usage: Usage | None, now_s: float) -> None:
        """The server has sent the whole response. `now_s`: Unix time."""
        ...


class Watch(Protocol):
    """What looks at a response between its server and its client."""

    def answered(self, response: "UpstreamResponse") -> None:
        """A server has begun this response."""
        ...


class UpstreamRequest(msgspec.Struct, frozen=True):
    """A request as it is sent to endpoints; the same bytes for every attempt.

    `model`: as the client wrote it. `route`: the owner of that name when the request arrived; it does not change.
    `revision`: the only one that may serve it; empty: any. `preferred`: the one that serves it while it has an
    endpoint, whatever its weight. `stream`: the client requested one. `wants_json`: it requested JSON text. `holder`:
    tag of the endpoint that may still have the stream. `tokens`: of the response so far, sent behind the body to a
    server that resumes it. `client`: memory and samples are counted by client. `excused`: kinds of failure that the
    request itself provokes. `account`: the memory that this request holds. `meter`: None without a tenant.
    `isolation`: of a tenant's request whose body is JSON. `batch`: the jobs process sends it. `scorable`: a scorer may
    get its contents. `computes`: the model runs. `responds_as`: the name of the model that its client gets in the
    response; empty: the one that the server wrote.
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
    account: Account = msgspec.field(default_factory=unlimited)
    route: str = ""
    meter: Meter | None = None
    isolation: Isolation | None = None
    base_revision: str = ""  # of an adapter whose stream goes on: the only one of its base that may serve it
    adapter: AdapterCall | None = None  # where the route is an adapter's
    method: str = "POST"
    batch: bool = False
    scorable: bool = True
    responds_as: str = ""
    prompt: PromptBlocks | None = None  # where the route prefers endpoints that have seen its beginning
    chosen: ChosenArm | None = None  # by an experiment
    fallback: str = ""  # which deployment did not answer it and why, where this is sent to another one
    fallbacks: tuple[Fallback, ...] | None = None  # of the rule that led to the route; None: those of the route
    degraded: tuple[str, ...] = ()  # what it has less of, because its route is overloaded
    capture: Capture | None = None  # where the response may be kept
    is_turn: bool = False  # of a conversation: its response is no other one's
    guards: tuple[BoundGuard, ...] = ()  # of its input and of its output
    watch: Watch | None = None  # where guards look at its response
    # Derived from the other fields, because each request needs them often.
    path: str = ""
    computes: bool = False
    writes_text: bool = False
    whose: str = ""  # the name by which the route is found

    def __post_init__(self) -> None:
        force_setattr(self, "whose", self.route or self.model)
        path, has_model, writes_text = _of_path(self.path_qs)
        force_setattr(self, "path", path)
        force_setattr(self, "computes", has_model and self.method == "POST")
        force_setattr(self, "writes_text", writes_text)

    @property
    def tenant(self) -> str:
        """Name of the tenant; empty without one."""
        return self.meter.tenant if self.meter else ""

    def at(self, revision: str, engine: str) -> tuple[str, bytes]:
        """Path and body for a revision at an engine of this type."""
        if self.adapter is None:
            return self.path_qs, self.body
        call = self.adapter
        return call.path_qs(self.path_qs, revision, engine), call.body(self.body, revision, engine)

    @property
    def is_sample(self) -> bool:
        """Whether its outcome is evidence: weights alone choose its revision, and the model computes it.

        A batch is none: it comes when there is room, and its requests are alike. Nor is what falls back from another
        deployment.
        """
        return self.computes and not (self.revision or self.preferred or self.batch or self.fallback)

    @property
    def stratum(self) -> str:
        return stratum(len(self.body), stream=self.stream)


@functools.lru_cache(maxsize=1024)
def _of_path(path_qs: str) -> tuple[str, bool, bool]:
    """The path without its query, whether a model computes its responses, and whether these are text."""
    path = path_qs.partition("?")[0]
    return path, path not in WITHOUT_MODEL, is_text_path(path)


def classify_status(status: int) -> str:
    """The outcome of a request with this status."""
    if status < 400:
        return "ok"
    if status == 429:
        return "refused"
    return "upstream_error" if status >= 500 else "client_error"


class UpstreamResponse(msgspec.Struct):
    """A response whose first byte arrived; `rest` is None when `start` is all of it.

    `failed`: it counts against its server (`responses.is_servers_failure`).
    """

    endpoint: RouteEndpoint
    status: int
    headers: MultiMapping[str]
    start: bytes
    rest: Reply | None = None
    attempt: Attempt | None = None
    failed: bool = False

    @property
    def outcome(self) -> str:
        """The outcome of a request that gets this response."""
        return "client_error" if self.status >= 500 and not self.failed else classify_status(self.status)

    @property
    def recorder(self) -> OutcomeRecorder | None:
        return self.attempt.recorder if self.attempt else None

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
        if self.attempt is not None:
            self.attempt.release()
