"""What a gateway reports of itself and of its routes: the bodies of `/internal/routes` and `/internal/calls`.

docs/contracts.md says what each field means. A field with a default is one that a gateway of a former release may leave
out. A report may hold any number: who reads it bounds each by what it is used for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class RevisionReport:
    """Requests at one revision: those in progress, and the first attempts since the process began.

    `pods`: those in progress by the pod's IP address; None: not reported.
    """

    inflight: int
    weight: int = 0
    endpoints: int = 0
    pods: dict[str, int] | None = None
    requests: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class FailsafeReport:
    """What the gateway does alone now: `cut_off` is the revision that gets none of its share; "": there is none."""

    cut_off: str = ""
    reason: str = ""
    expired: bool = False


@dataclass(frozen=True, slots=True)
class ActivityReport:
    """`held` requests wait for an endpoint. Seconds: since the route is known, and since its last request (or None)."""

    held: int = 0
    known_s: float | None = None
    last_request_s: float | None = None


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """Results of the requests for one route at one gateway in the last 10 to 20 seconds."""

    answered: int = 0  # a server began a response with a status below 500
    refused: int = 0  # clients got a 5xx
    last: str = ""  # outcome of the last refused request
    unserved_s: float | None = None  # seconds in which the gateway had no endpoint of the route; None: it has one


@dataclass(frozen=True, slots=True)
class ImplausibleUsage:
    """Tokens that a server of the route reported, and how many its request can have caused."""

    reported: int
    possible: int


@dataclass(frozen=True, slots=True)
class RouteReport:
    """One route. `samples`: GenerationCounts, of which `counters.read` leaves out those that are malformed.

    `objectives`: counts by key, which `service_levels.read` reads; None: the route has none. `recounts_differ`: in what
    the compiled lane and Python counted requests of the route differently, since the process began. `accuracy`: counts
    for spec.accuracy, which `accuracy.read` reads; None: the route has none. `key_problems`: why API keys of
    fallbacks that are other providers could not be read, a sentence each.
    """

    uid: str = ""
    generation: int | None = None
    digest: str = ""
    revisions: dict[str, RevisionReport] = field(default_factory=dict)
    failsafe: FailsafeReport = FailsafeReport()
    activity: ActivityReport = ActivityReport()
    service: ServiceReport = ServiceReport()
    implausible_usage: ImplausibleUsage | None = None
    samples: Any = ()
    objectives: Any = None
    recounts_differ: tuple[str, ...] = ()
    accuracy: Any = None
    key_problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableReport:
    """Whether the table was restored after a restart, and the seconds since the API server confirmed it."""

    restored: bool = False
    age_s: float = 0.0


class GatewayReport(msgspec.Struct):
    """The body of `/internal/routes`. There may be thousands of routes: each stays encoded until it is read.

    `bounds`: of buckets of latencies, which `counters.read_bounds` reads. `routes`: RouteReports, by namespace/name.
    `inflight`: requests that have a place in the gateway, those to other providers and to jobs included; None: not
    reported.
    """

    routes: dict[str, msgspec.Raw]
    incarnation: str = ""
    draining: bool = False
    table: TableReport = TableReport()
    bounds: Any = None
    inflight: int | None = None


class CallsReport(msgspec.Struct):
    """The body of `/internal/calls`: routes that must be looked at, and the mark after which the next call waits."""

    mark: str
    routes: list[str]


NOT_REPORTED = RouteReport()
_ROUTE = msgspec.json.Decoder(RouteReport)
_REPORT = msgspec.json.Decoder(GatewayReport)
_CALLS = msgspec.json.Decoder(CallsReport)


def encoded(routes: Mapping[str, RouteReport]) -> dict[str, msgspec.Raw]:
    """The `routes` of a report."""
    return {name: msgspec.Raw(msgspec.json.encode(route)) for name, route in routes.items()}


def read_report(body: bytes) -> GatewayReport:
    """Raises msgspec.DecodeError, ValueError: it is no report."""
    return _REPORT.decode(body)


def read_route(report: bytes | msgspec.Raw | None) -> RouteReport:
    """One of the `routes`; None: the gateway has no such route.

    Raises:
        msgspec.DecodeError, ValueError: it is no report of a route.
    """
    return _ROUTE.decode(report) if report else NOT_REPORTED


def read_calls(body: bytes) -> CallsReport:
    """Raises msgspec.DecodeError, ValueError: it is no list of calls."""
    return _CALLS.decode(body)
