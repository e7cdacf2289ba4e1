"""Reads from every gateway what it routes and how many requests are in progress."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import aiohttp
import msgspec

from slipway_contracts import accuracy, counters, service_levels
from slipway_contracts.gateway_report import (
    ImplausibleUsage,
    RouteReport,
    ServiceReport,
    read_report,
    read_route,
)
from slipway_contracts.resilience import MOST_FALLBACKS
from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.resources import ENDPOINT_SLICES
from slipway_operator.model.cluster.observed import Gateway
from slipway_process.network.host_names import gateway_zone, host_name

log = logging.getLogger(__name__)

NOT_ALLOWED = 405  # a former release's gateway answers POST with it; there GET renews the failsafe
_NO_POST = (401, 403, NOT_ALLOWED)
MOST_REFUSED = 256
TIMEOUT_S = 2.0
CACHE_S = 0.3
# How long the report of a dead gateway counts: clients repeat its requests through another gateway.
GRACE_S = 30.0
PORT_NAME, TLS_PORT_NAME = "admin", "internal"
DIGEST_LENGTH = 64  # hexadecimal digits of SHA-256
MOST_AT_A_POD = 1 << 20
MOST_KINDS, LONGEST_KIND = 8, 32  # of differences between two lanes; a gateway has seven
LONGEST_PROBLEM = 512  # characters of a sentence about a provider's key
_MAX_S = 1e9
_MALFORMED = (ValueError, RecursionError)  # what a report raises where it is read; msgspec's errors are ValueErrors
_SERVICE_LABEL = "kubernetes.io/service-name"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a gateway's admin port is."""

    name: str
    url: str
    ready: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The report of one gateway about all routes, each as JSON; `reachable` is False without a response."""

    name: str
    ready: bool
    reachable: bool
    routes: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    incarnation: str = ""  # changes with each start of its process
    bounds: counters.Bounds = field(default_factory=dict)  # of the buckets of latencies; none from an older gateway
    gone: bool = False  # the last report of a gateway that is gone, kept for GRACE_S
    draining: bool = False
    in_flight: int | None = None  # requests that have a place in it; None from an older gateway

    def held(self, namespace: str, name: str, uid: str) -> int:
        """Return how many requests of one ModelDeployment wait at the gateway for an endpoint; 0 when not reported."""
        try:
            route = self._route(namespace, name)
            return _count(route.activity.held) if route.uid == uid else 0
        except _MALFORMED:
            return 0

    def inflight(self, namespace: str, name: str, uid: str) -> int | None:
        """Return the number of requests in progress at one ModelDeployment; None without a valid route of it."""
        try:
            route = self._route(namespace, name)
            return sum(_count(report.inflight) for report in route.revisions.values()) if route.uid == uid else None
        except _MALFORMED:
            return None

    def about(self, namespace: str, name: str, uid: str) -> Gateway:
        """Return the part about one ModelDeployment; a route of a former one of that name does not count.

        A malformed report counts as no response: its gateway must not stop a rollout, nor count as up to date.
        """
        gateway = Gateway(self.name, self.ready, self.reachable, gone=self.gone)
        try:
            route = self._route(namespace, name)
            return self._about(route, gateway) if route.uid == uid else gateway
        except _MALFORMED:
            return replace(gateway, reachable=False)

    def _about(self, route: RouteReport, gateway: Gateway) -> Gateway:
        """Return `gateway` with what its report has about a route, each number within bounds.

        Raises:
            ValueError: something in the report is no number of seconds, or the generation is missing.
        """
        if route.generation is None:
            raise ValueError("a route without its generation")
        usage, revisions = route.implausible_usage, route.revisions
        return replace(
            gateway,
            generation=_count(route.generation),
            inflight={revision: _count(report.inflight) for revision, report in revisions.items()},
            at_pods={
                revision: _at_pods(report.pods) for revision, report in revisions.items() if report.pods is not None
            },
            incarnation=self.incarnation,
            cut_off=route.failsafe.cut_off,
            bounds=self.bounds,
            samples=counters.read(route.samples, self.bounds),
            held=_count(route.activity.held),
            known_s=_seconds(route.activity.known_s),
            last_request_s=_seconds(route.activity.last_request_s),
            digest=route.digest[:DIGEST_LENGTH],
            weights={revision: _count(report.weight) for revision, report in revisions.items()},
            service=_service(route.service),
            objectives=service_levels.read(route.objectives),
            accuracy=accuracy.read(route.accuracy),
            implausible_usage=usage and ImplausibleUsage(_count(usage.reported), _count(usage.possible)),
            recounts_differ=tuple(kind[:LONGEST_KIND] for kind in route.recounts_differ[:MOST_KINDS]),
            key_problems=tuple(problem[:LONGEST_PROBLEM] for problem in route.key_problems[:MOST_FALLBACKS]),
        )

    def _route(self, namespace: str, name: str) -> RouteReport:
        """Return the decoded route of one ModelDeployment; empty without one."""
        return read_route(self.routes.get(f"{namespace}/{name}"))


def _encrypted_origin(address: str) -> str:
    """Return the https origin of a gateway, by the host name in its certificate."""
    try:
        return f"https://{host_name(address, gateway_zone())}"
    except ValueError:  # the address is a DNS name, which no gateway has
        return f"https://{address}"


def _at_pods(pods: Mapping[str, int]) -> dict[str, int]:
    """Return requests in progress by pod address, bounded to what the deletion-cost annotation can hold."""
    return {address: min(max(0, count), MOST_AT_A_POD) for address, count in pods.items()}


def _service(service: ServiceReport) -> ServiceReport:
    return ServiceReport(
        _count(service.answered),
        _count(service.refused),
        service.last[: counters.LONGEST],
        _seconds(service.unserved_s),
    )


def _count(number: int) -> int:
    """Return a number of requests or tokens, bounded to what JSON holds."""
    return min(max(0, number), counters.MAX_COUNT)


def _seconds(value: float | None) -> float | None:
    """Return a number of seconds, or None without a value.

    Raises:
        ValueError: it is negative.
    """
    if value is None:
        return None
    if not value >= 0:
        raise ValueError(f"{value!r} is no number of seconds")
    return min(float(value), _MAX_S)


class Gateways:
    """The gateways behind one Service. Concurrent reconciles share one poll."""

    def __init__(
        self,
        client: Client,
        session: aiohttp.ClientSession,
        namespace: str,
        service: str,
        clock: Callable[[], float] = time.monotonic,
        token: Callable[[], str] = str,
        *,
        tls: bool = False,
    ) -> None:
        """`token` returns the bearer token that authenticates the operator at gateways; "" where they need none.

        `tls`: `session` has a client certificate, and gateways with a TLS port are read at that port.
        """
        self._client, self._session = client, session
        self._token, self._tls = token, tls
        self._refused: set[str] = set()  # gateways that reject our token, each logged once
        self._namespace, self._service = namespace, service
        self._clock = clock
        self._lock = asyncio.Lock()
        self._answers: tuple[Answer, ...] = ()
        self._last_reports: dict[str, tuple[float, Answer]] = {}  # by incarnation
        self._fresh_until = float("-inf")

    async def answers(self) -> tuple[Answer, ...]:
        """Return the gateways' reports, at most `CACHE_S` old."""
        async with self._lock:
            if self._clock() >= self._fresh_until:
                # Set before the request: a report never counts as younger than it is, and `forget` invalidates it.
                self._fresh_until = self._clock() + CACHE_S
                try:
                    self._answers = await self._fetch_all()
                except BaseException:
                    self.forget()
                    raise
            return self._answers

    def forget(self) -> None:
        """Invalidate all reports after a change at a gateway, also those in progress."""
        self._fresh_until = float("-inf")

    async def endpoints(self) -> list["Endpoint"]:
        """Return the gateways' admin ports."""
        return await admin_ports(self._client, self._namespace, self._service, tls=self._tls)

    async def _fetch_all(self) -> tuple[Answer, ...]:
        answers = await asyncio.gather(*(self._fetch(endpoint) for endpoint in await self.endpoints()))
        found = tuple(answer for answer in answers if answer)
        return (*found, *self._fallen(found))

    def _fallen(self, found: tuple[Answer, ...]) -> list[Answer]:
        """Return the last reports of gateways that are gone: one that was killed had requests in progress.

        Their clients retry at another gateway, and need the revision that began to serve them. One that shut down in
        order had none. The reports are only in memory: a restart of the operator loses them, and does no harm.
        """
        now = self._clock()
        self._last_reports = {name: item for name, item in self._last_reports.items() if now - item[0] < GRACE_S}
        present = {answer.incarnation for answer in found}
        fallen = [
            replace(answer, ready=False, gone=True)
            for _, answer in self._last_reports.values()
            if answer.incarnation not in present
        ]
        self._last_reports |= {answer.incarnation: (now, answer) for answer in found if answer.incarnation}
        return fallen

    async def _fetch(self, endpoint: Endpoint) -> Answer | None:
        try:
            report = read_report(await self._report(endpoint))
            incarnation, bounds = report.incarnation[: counters.LONGEST], counters.read_bounds(report.bounds)
            places = None if report.inflight is None else _count(report.inflight)
            of_process = (report.routes, incarnation, bounds)
            return Answer(endpoint.name, endpoint.ready, True, *of_process, draining=report.draining, in_flight=places)
        except aiohttp.ClientConnectorError as error:
            # A closed port of an endpoint that is not ready: the gateway has not started or has ended; no requests.
            if isinstance(error.os_error, ConnectionRefusedError) and not endpoint.ready:
                return None
            return Answer(endpoint.name, endpoint.ready, False)
        except (aiohttp.ClientError, OSError, TimeoutError, *_MALFORMED):
            return Answer(endpoint.name, endpoint.ready, False)

    async def _report(self, endpoint: Endpoint) -> bytes:
        """Return a gateway's report as JSON. POST also renews its failsafe; where POST is refused, use GET."""
        url, limit = f"{endpoint.url}/internal/routes", aiohttp.ClientTimeout(total=TIMEOUT_S)
        token = self._token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self._session.post(url, headers=headers, timeout=limit) as response:
            if response.status not in _NO_POST:
                self._refused.discard(endpoint.url)
                response.raise_for_status()
                return await response.read()
            if response.status != NOT_ALLOWED and endpoint.url not in self._refused:
                self._refused = {*list(self._refused)[-MOST_REFUSED:], endpoint.url}
                log.warning("gateway %s does not take the operator's token: its failsafe is not renewed", endpoint.name)
        async with self._session.get(url, timeout=limit) as response:
            response.raise_for_status()
            return await response.read()


async def admin_ports(client: Client, namespace: str, service: str, *, tls: bool = False) -> list[Endpoint]:
    """Return the admin ports behind a headless Service of the release."""
    slices = await client.list(ENDPOINT_SLICES, namespace, f"{_SERVICE_LABEL}={service}", cached=True)
    return endpoints(slices, tls=tls)


def endpoints(slices: list[Object], *, tls: bool = False) -> list[Endpoint]:
    """Return the admin ports in EndpointSlices, also of terminating gateways: they still hold requests.

    `tls`: the ports with TLS, where a gateway has one; those of a former release, or without a certificate, have none.
    """
    found: dict[str, Endpoint] = {}
    for item in slices:
        ports = {port.get("name"): port["port"] for port in item.get("ports") or ()}
        encrypted = ports.get(TLS_PORT_NAME) if tls else None
        port = encrypted or ports.get(PORT_NAME)
        for entry in (item.get("endpoints") or ()) if port else ():
            address = entry["addresses"][0]
            host = f"[{address}]" if item.get("addressType") == "IPv6" else address
            origin = _encrypted_origin(address) if encrypted else f"http://{host}"
            # The API documents an absent condition as ready.
            ready = (entry.get("conditions") or {}).get("ready") is not False
            name = (entry.get("targetRef") or {}).get("name") or address
            # Two slices contain one pod while it moves between them: the ready entry counts.
            if ready or host not in found:
                found[host] = Endpoint(name, f"{origin}:{port}", ready)
    return sorted(found.values(), key=lambda endpoint: endpoint.name)
