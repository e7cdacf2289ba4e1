"""status.traffic: the routing table of the gateways, its digest, and what gateways refuse in it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Protocol

from pydantic import Field

from slipway_contracts import accuracy as accuracy_counts
from slipway_contracts import service_levels
from slipway_contracts.accuracy import AccuracyCounting
from slipway_contracts.api.markers import AtMost
from slipway_contracts.api.types import Int32, Int64, strict
from slipway_contracts.api.writing import to_json
from slipway_contracts.guards import GuardSpec, guards_refusal
from slipway_contracts.resilience import (
    CircuitBreaker,
    Degradation,
    ExternalTarget,
    RetryBudget,
    breaker_refusals,
    budget_refusals,
    degradation_refusals,
)
from slipway_contracts.service_levels import ServiceLevels
from slipway_contracts.twin_shadow import PredictionTolerance, TwinShadow, outside, shadow_refusal, tolerance_refusals

LONGEST_TTL_S = 30 * 86400  # for which a response may be kept


@strict
@dataclass(frozen=True, slots=True)
class HeaderMatch:
    """Match of a request header, by its whole value (exact) or the beginning of its value (prefix)."""

    name: str
    """Name of the header in lower case."""
    exact: str | None = None
    """Whole value of the header."""
    prefix: str | None = None
    """Beginning of the value."""


@strict
@dataclass(frozen=True, slots=True)
class Backend:
    """Revision and its share of new requests."""

    revision: str
    """Hash of the revision. The suffix -baseline denotes new pods of the stable revision, for comparison."""
    weight: Int32
    """Percent of new requests."""
    version: str | None = None
    """Human-readable version."""
    engine: str | None = None
    """Type of the engine, vllm or sglang, for which gateways add fields to requests that keep tenants apart. Absent for
    other types, and where it is not known."""


@strict
@dataclass(frozen=True, slots=True)
class HeaderRoute:
    """Route to a revision by request headers, regardless of the weights."""

    name: str
    """Name of the route."""
    revision: str
    """Revision that gets the requests."""
    match: Annotated[tuple[HeaderMatch, ...], AtMost(8)]
    """Headers of a request. All must match."""


@strict
@dataclass(frozen=True, slots=True)
class MirrorRoute:
    """Mirroring to a revision: it gets copies of a share of the requests that the other revision answers."""

    name: str
    """Name of the mirror route."""
    revision: str
    """Revision that gets the copies."""
    percentage: Int32
    """Percent of the requests of the other revision that are copied."""
    match: Annotated[tuple[HeaderMatch, ...], AtMost(8)] = ()
    """Headers of a request. All must match."""
    tolerance: PredictionTolerance | None = None


@strict
@dataclass(frozen=True, slots=True)
class InferenceLogSample:
    """Requests of a classic model that gateways with an inference log write to it."""

    percentage: Int32
    """Percent of the requests."""
    contents: bool | None = None
    """Whether their inputs and outputs are written, too."""


@strict
@dataclass(frozen=True, slots=True)
class GenerationLogSample:
    """Requests for text that gateways with a generation log write to it, of tenants that allow it."""

    percentage: Int32
    """Percent of the requests."""
    contents: bool | None = None
    """Whether prompts and responses are written, too, and not only their lengths and hashes."""


@strict
@dataclass(frozen=True, slots=True)
class ResponseCache:
    """Responses that gateways keep, and answer equal requests with."""

    ttl_seconds: Int32
    """Seconds for which a response is kept."""
    shared: bool | None = None
    """Whether a tenant gets responses to requests of other tenants."""


@strict
@dataclass(frozen=True, slots=True)
class Traffic:
    """Routing table of the gateways.

    See docs/contracts.md.
    """

    generation: Int64
    """Generation of the table. It increases with every change."""
    model: str
    """Name that clients send as "model"."""
    salt: str = ""
    """Salt of the traffic split. It changes with each attempt, so that each attempt exposes different users."""
    backends: Annotated[tuple[Backend, ...], AtMost(8)] = ()
    """Revisions and their weights. The revision under test comes first."""
    header_routes: Annotated[tuple[HeaderRoute, ...], AtMost(50)] = ()
    """Routes to a revision by request headers. They take precedence over the weights."""
    hold_seconds: Int32 | None = None
    """Maximum time in seconds that a gateway holds a request while no pod is ready. If absent, the gateway's own
    setting applies."""
    acknowledged: str = ""
    """Number of ready gateways that route by this table, and of all ready gateways, for example 2/3."""
    mirror_routes: Annotated[tuple[MirrorRoute, ...], AtMost(50)] = ()
    """Mirroring of requests to a revision. Clients do not see the responses to the copies."""
    twin_shadow: TwinShadow | None = None
    """Copies of sessions to a revision and to a stable pod, which are compared. Clients do not see the responses."""
    asleep: bool | None = None
    """Whether gateways hold all new requests and send none to the pods."""
    wake_seconds: Int32 | None = None
    """Expected duration of a wake in seconds. 0 if it is not known yet."""
    forward_headers: Annotated[
        tuple[Annotated[str, Field(description="Name of the header in lower case.")], ...], AtMost(4)
    ] = ()
    """Headers with client credentials that gateways forward to the pods."""
    feedback: bool | None = None
    """Whether responses have a token with which clients send feedback, because an analysis compares it."""
    predictions: bool | None = None
    """Whether gateways count what responses of classic models predict, because an analysis compares it."""
    inference_log: InferenceLogSample | None = None
    slo: ServiceLevels | None = None
    prefix_affinity: bool | None = None
    """Whether gateways prefer pods that have seen the beginning of a prompt."""
    fallback: Annotated[
        tuple[Annotated[str, Field(description="Name of a ModelDeployment of the namespace, or in external.")], ...],
        AtMost(4),
    ] = ()
    """What answers requests for text in place of this ModelDeployment, in this order, while it cannot."""
    first_byte_seconds: Int32 | None = None
    """Seconds after which a request without a first byte goes to one of these. If absent, none does for that reason."""
    accuracy: AccuracyCounting | None = None
    cache: ResponseCache | None = None
    external: Annotated[tuple[ExternalTarget, ...], AtMost(4)] = ()
    """Those of fallback that are APIs of other providers."""
    circuit_breaker: CircuitBreaker | None = None
    retry_budget: RetryBudget | None = None
    degradation: Degradation | None = None
    guards: Annotated[tuple[GuardSpec, ...], AtMost(8)] = ()
    """Checks of requests and responses."""
    base: str | None = None
    """ModelDeployment whose pods serve the revisions, which are adapters. If absent, each revision has its own pods."""
    generation_log: GenerationLogSample | None = None

    def __post_init__(self) -> None:
        if self.accuracy == AccuracyCounting():  # nothing of it would be written: it is the same as none
            object.__setattr__(self, "accuracy", None)

    def weight(self, revision: str | None) -> int:
        """Percent of new requests of a revision."""
        return next((backend.weight for backend in self.backends if backend.revision == revision), 0)

    @property
    def digest(self) -> str:
        """The digest that a gateway reports when it routes by this table; `acknowledged` is not part of it."""
        return _digest(replace(self, acknowledged=""))


@lru_cache(4096)
def _digest(table: Traffic) -> str:
    return digest(to_json(table))


def digest(written: Mapping[str, Any]) -> str:
    """SHA-256 of a table's canonical JSON without `acknowledged`, which follows from it; see docs/contracts.md."""
    hashed = {key: item for key, item in written.items() if key != "acknowledged"}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class Routed(Protocol):
    """The parts of a table that gateways refuse when they make no sense: see `refusal`."""

    @property
    def backends(self) -> tuple[Backend, ...]: ...
    @property
    def mirror_routes(self) -> tuple[MirrorRoute, ...]: ...
    @property
    def twin_shadow(self) -> TwinShadow | None: ...
    @property
    def inference_log(self) -> InferenceLogSample | None: ...
    @property
    def generation_log(self) -> GenerationLogSample | None: ...
    @property
    def slo(self) -> ServiceLevels | None: ...
    @property
    def accuracy(self) -> AccuracyCounting | None: ...
    @property
    def cache(self) -> ResponseCache | None: ...
    @property
    def first_byte_seconds(self) -> int | None: ...
    @property
    def circuit_breaker(self) -> CircuitBreaker | None: ...
    @property
    def retry_budget(self) -> RetryBudget | None: ...
    @property
    def degradation(self) -> Degradation | None: ...
    @property
    def guards(self) -> tuple[GuardSpec, ...]: ...


def refusal(table: Routed) -> str:
    """Why gateways do not route by a table, with the path of its field; empty where they do.

    These are no bounds of the schema: the operator reads such a table, too, and writes another one over it.
    """
    return next(filter(None, _refusals(table)), "")


def _refusals(table: Routed) -> Iterator[str]:
    weights = [backend.weight for backend in table.backends]
    yield from (outside("backends.weight", weight, 0, 100) for weight in weights)
    if weights and sum(weights) != 100:
        yield f"the weights sum to {sum(weights)}, not to 100"
    if len({backend.revision for backend in table.backends}) != len(weights):
        yield "a revision is listed twice"
    for mirror in table.mirror_routes:
        yield outside("mirrorRoutes.percentage", mirror.percentage, 0, 100)
        yield from tolerance_refusals("mirrorRoutes.tolerance", mirror.tolerance)
    if table.twin_shadow is not None:
        yield shadow_refusal(table.twin_shadow)
    yield from _log_refusals(table)
    if table.slo is not None:
        yield service_levels.refusal(table.slo)
    if table.accuracy is not None:
        yield accuracy_counts.refusal(table.accuracy)
    if table.first_byte_seconds is not None:
        yield outside("firstByteSeconds", table.first_byte_seconds, 1, 3600)
    if table.cache is not None:
        yield outside("cache.ttlSeconds", table.cache.ttl_seconds, 1, LONGEST_TTL_S)
    yield from breaker_refusals(table.circuit_breaker)
    yield from budget_refusals(table.retry_budget)
    yield from degradation_refusals(table.degradation)
    yield guards_refusal(table.guards)


def _log_refusals(table: Routed) -> Iterator[str]:
    for log, sample in (("inferenceLog", table.inference_log), ("generationLog", table.generation_log)):
        if sample is not None:
            yield outside(f"{log}.percentage", sample.percentage, 0, 100)
