"""Reads the load of the release's own processes when an autoscaler reads it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp

from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError
from slipway_operator.kube.reading.gateways import Answer, Endpoint, admin_ports
from slipway_operator.metrics_api import exposition
from slipway_operator.metrics_api.release_loads import (
    GATEWAY_IN_FLIGHT,
    JOBS_LINES,
    JobsLoad,
    gateways_in_flight,
    lines_of_jobs,
)
from slipway_operator.metrics_api.sampler import LARGEST_BYTES, TIMEOUT_S, Answers
from slipway_operator.metrics_api.series import Number, Unknown
from slipway_process.network.guarded import read_body

READ_AGAIN_S = 5.0  # autoscalers read every 15 s, and however many clients there are, processes are read no more often
_IN_FLIGHT, _SHORT = "slipway_jobs_in_flight", "slipway_jobs_short_of_places"


class NotInRelease(Exception):
    """The release has no such processes."""


@dataclass(slots=True)
class JobsProcesses:
    """The jobs processes behind a headless Service; without the name of one the release has none."""

    client: Client
    session: aiohttp.ClientSession
    namespace: str
    service: str

    async def lines(self) -> float:
        """Return the lines in flight, and those that wait for a place.

        Raises:
            NotInRelease: there is no Service of jobs.
            Unknown: too few processes have numbers.
        """
        if not self.service:
            raise NotInRelease("this release has no jobs processes (jobs.enabled)")
        ports = await admin_ports(self.client, self.namespace, self.service)
        ready = [port for port in ports if port.ready]
        return lines_of_jobs(await asyncio.gather(*map(self._load, ready)))

    async def _load(self, port: Endpoint) -> JobsLoad | str:
        limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with self.session.get(f"{port.url}/metrics", timeout=limit, allow_redirects=False) as response:
                response.raise_for_status()
                page = await read_body(response, LARGEST_BYTES)
            found = exposition.gauges(page.decode(errors="replace"), (_IN_FLIGHT, _SHORT))
            return JobsLoad(found[_IN_FLIGHT], found[_SHORT])
        except KeyError as missing:
            return f"{port.name} does not report {missing.args[0]}"
        except (exposition.Malformed, aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"{port.name}: {type(error).__name__}: {error}".rstrip(": ")


@dataclass(slots=True)
class _Cached:
    """What the last reading returned or raised, so that the next clients get it too."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    number: Number | Unknown | NotInRelease | None = None
    until: float = float("-inf")


class ReleaseLoads:
    """The metrics of the release's own processes, which are of its namespace."""

    def __init__(
        self, namespace: str, gateways: Answers, jobs: JobsProcesses, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.namespace, self._gateways, self._clock = namespace, gateways, clock
        self._read: dict[str, Callable[[], Awaitable[float]]] = {
            GATEWAY_IN_FLIGHT: self._in_flight,
            JOBS_LINES: jobs.lines,
        }
        self._cached = {metric: _Cached() for metric in self._read}

    async def number(self, metric: str) -> Number:
        """Return the value of a metric, at most READ_AGAIN_S old.

        Raises:
            NotInRelease: the release has no such processes.
            Unknown: there is no fresh value.
        """
        cached = self._cached[metric]
        async with cached.lock:
            if self._clock() >= cached.until:
                cached.number = await self._fresh(metric)
                cached.until = self._clock() + READ_AGAIN_S
        assert cached.number is not None
        if isinstance(cached.number, Number):
            return cached.number
        raise type(cached.number)(*cached.number.args)

    async def _fresh(self, metric: str) -> Number | Unknown | NotInRelease:
        began = self._clock()
        try:
            return Number(await self._read[metric](), began)
        except (Unknown, NotInRelease) as problem:
            return problem
        except ApiError as error:
            return Unknown(f"the processes cannot be found: {error}")

    async def _in_flight(self) -> float:
        answers = await self._gateways.answers()
        return gateways_in_flight([_load(answer) for answer in answers if answer.ready and not answer.draining])


def _load(answer: Answer) -> float | str:
    return f"{answer.name} does not report it" if answer.in_flight is None else float(answer.in_flight)
