"""Counters of limits at a Redis or Valkey server: bounded in time, and given up for a while after a failure."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from slipway_process.places import Places

from ..quotas.gcra import Rate
from ..quotas.tenant import LimitReached, Limits
from ..telemetry.metrics import GatewayMetrics
from .counters import CountersAway, OnAnswer
from .redis_client import drop_connections, open_client, refuse_cluster
from .scripts import BATCH, RENEW

log = logging.getLogger(__name__)

LEASE_S, RENEW_EACH_S = 30.0, 10.0
RETRY_EACH_S = 1.0
MAX_WAITING = 20_000  # settlements, while the server is away, with a share for each tenant
_BATCH = 100
# A settlement waits so long for a call that takes it along: a batch costs many times as much as what is in it.
_SETTLED_S = 0.01
_RENEWED_AT_ONCE = 500
_CONNECTIONS = 4
_TAKEN = b"1"
_FAILURES = (RedisError, OSError, TimeoutError)
Settlement = tuple[str, str, Mapping[str, int]]  # tenant, id, what was used


@dataclass(frozen=True, slots=True)
class _Call:
    """A request that waits to be counted. `arguments`: as the script of batches has them."""

    tenant: str
    arguments: str
    answer: "asyncio.Future[Any] | _LaneAnswer"


class _LaneAnswer:
    """The answer to a call of the fast lane, in place of a future: what sets it gives it on at once."""

    __slots__ = ("_on_answer",)

    def __init__(self, on_answer: OnAnswer) -> None:
        self._on_answer = on_answer

    def done(self) -> bool:
        return False

    def set_result(self, result: Sequence[Any]) -> None:
        taken, _, _, *full_s = result
        self._on_answer([float(one) for one in full_s] if taken == _TAKEN else None, known=True)

    def set_exception(self, _: BaseException) -> None:
        self._on_answer(None, known=False)


class RedisCounters:
    """`away` until `run` has reached the server. `prefix`: of its keys; gateways with one prefix share limits."""

    def __init__(self, url: str, prefix: str, timeout_s: float, metrics: GatewayMetrics) -> None:
        """
        Raises:
            ValueError: the URL is none of a Redis server.
        """
        self._client: Redis = open_client(url, _CONNECTIONS, timeout_s)
        self._prefix, self._timeout_s, self._metrics = prefix, timeout_s, metrics
        self._running: dict[str, dict[str, bool]] = {}  # by tenant and id: whether the server may know the request
        self._waiting: deque[Settlement] = deque()
        self._places = Places(MAX_WAITING)
        self._calls: deque[_Call] = deque()
        self._wake = asyncio.Event()
        self._settles: asyncio.TimerHandle | None = None
        self.away = True
        self._trouble = ""

    async def reserve(
        self, tenant: str, id_: str, limits: Limits, amounts: Mapping[str, int]
    ) -> tuple[LimitReached | None, dict[str, tuple[Rate, float]]]:
        """The limit that refused the request, or None; and by limit its rate and the seconds until its bucket is full.

        Raises:
            CountersAway: it is not known what the server did; `begin` and `settle` are called all the same.
        """
        if self.away:
            raise CountersAway
        rates, future = limits.rates(), asyncio.get_running_loop().create_future()
        self._add(_Call(tenant, _arguments(id_, limits, amounts), future))
        try:
            # Time for the batch before, for its own batch, and for a turn of `run`.
            async with asyncio.timeout(3 * self._timeout_s):
                answer = await future
        except TimeoutError as error:
            raise CountersAway from error
        taken, reached, wait_s, *full_s = answer
        states = dict(zip(rates, zip(rates.values(), map(float, full_s), strict=True), strict=True))
        return None if taken == _TAKEN else LimitReached(reached.decode(), float(wait_s)), states

    def call(self, tenant: str, id_: str, limits: Limits, amounts: Mapping[str, int], on_answer: OnAnswer) -> None:
        """As `reserve`, for a request of the fast lane."""
        if self.away:
            on_answer(None, known=True)
        else:
            self._add(_Call(tenant, _arguments(id_, limits, amounts), _LaneAnswer(on_answer)))

    def _add(self, call: _Call) -> None:
        self._calls.append(call)
        self._wake.set()

    def begin(self, tenant: str, id_: str, *, sent: bool) -> None:
        """A request runs, wherever it was counted: `run` renews its lease. `sent`: the server may know the request."""
        self._running.setdefault(tenant, {})[id_] = sent

    def settle(self, tenant: str, id_: str, used: Mapping[str, int]) -> None:
        """Queues the use of a request for `run`, which writes it once the server is there.

        Ignores an id that did not begin, or that the server cannot know.
        """
        running = self._running.get(tenant, {})
        sent = running.pop(id_, False)
        if not running:
            self._running.pop(tenant, None)
        if not sent:
            return
        if self._places.take(tenant):
            # The settlement is lost: its reservation flows back with time, and its lease ends.
            self._metrics.settlements_lost.inc()
            return
        self._waiting.append((tenant, id_, dict(used)))
        if self._settles is None:
            self._settles = asyncio.get_running_loop().call_later(_SETTLED_S, self._settle_now)

    def _settle_now(self) -> None:
        self._settles = None
        self._wake.set()

    async def run(self) -> None:
        """Writes settlements and renews leases until cancelled; tries again each second while the server is away."""
        loop = asyncio.get_running_loop()
        renewed_s = float("-inf")
        # Before Python 3.11.3 the library may take a cancellation for a timeout of its own.
        while not cancellations():
            try:
                if self.away or loop.time() - renewed_s >= RENEW_EACH_S:
                    renewed_s = loop.time()
                    if self.away:
                        async with asyncio.timeout(self._timeout_s):
                            await refuse_cluster(self._client)
                    await self._renew()
                    self._recovered()
                await self._work()
            except Exception as error:
                self._failed(error)  # requests do not wait for answers that never come
                await drop_connections(self._client)
                if not isinstance(error, _FAILURES):
                    raise
            await self._pause(RETRY_EACH_S if self.away else max(0.0, renewed_s + RENEW_EACH_S - loop.time()))

    async def close(self) -> None:
        """Writes the settlements that wait, if the server is there, and closes the connections."""
        try:
            while not self.away and (self._waiting or self._calls):
                await self._work()
        except _FAILURES as error:
            self._failed(error)
        finally:
            if self._settles is not None:
                self._settles.cancel()
            await drop_connections(self._client)

    async def _pause(self, seconds: float) -> None:
        if self.away:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _renew(self) -> None:
        """Renews the leases of requests that run here. Without any it calls too, to see whether scripts may run."""
        batches: list[tuple[Sequence[str], list[Any]]] = [
            (self._keys(tenant), [LEASE_S, *ids[at : at + _RENEWED_AT_ONCE]])
            for tenant, ids in [(tenant, list(running)) for tenant, running in self._running.items()]
            for at in range(0, len(ids), _RENEWED_AT_ONCE)
        ]
        for running in self._running.values():
            running.update(dict.fromkeys(running, True))
        for keys, arguments in batches or [(self._keys(""), [LEASE_S])]:
            async with asyncio.timeout(self._timeout_s):
                await self._client.eval(RENEW, len(keys), *keys, *arguments)

    async def _work(self) -> None:
        """Sends all that waits, in batches: settlements first, because what they give back may be taken again.

        Settlements that come meanwhile wait for the next calls.
        """
        self._wake.clear()
        goes_on = bool(self._waiting or self._calls)
        while goes_on:
            settled = list(islice(self._waiting, _BATCH))
            calls = [self._calls.popleft() for _ in range(min(_BATCH, len(self._calls)))]
            calls = [call for call in calls if not call.answer.done()]
            try:
                results = await self._execute(settled, calls)
            except Exception:
                _give_up(calls)
                raise
            self._settled(settled, results)
            self._answer(calls, results[len(settled) :])
            goes_on = bool(self._calls) or len(self._waiting) >= _BATCH

    async def _execute(self, settled: Sequence[Settlement], calls: Sequence[_Call]) -> list[Any]:
        """Sends the script as text: a server that was restarted knows none, and some let no client load any.

        Returns for each call its values, or what the server has against it.
        """
        numbers: dict[str, int] = {}  # of tenants
        text = [
            f"settle {numbers.setdefault(tenant, len(numbers))} {id_}"
            + "".join([f" {name} {used[name]}" for name in used])
            for tenant, id_, used in settled
        ]
        text += [f"reserve {numbers.setdefault(one.tenant, len(numbers))} {one.arguments}" for one in calls]
        if not text:
            return []  # of all that waited, the clients have left
        keys = [key for tenant in numbers for key in self._keys(tenant)]
        async with asyncio.timeout(self._timeout_s):
            lines: bytes = await self._client.eval(BATCH, len(keys), *keys, "\n".join(text))
        return [_values(line) for line in lines.split(b"\n")]

    def _settled(self, settled: Sequence[Settlement], results: Sequence[Any]) -> None:
        """Removes what was sent. What the server refused is not sent again: its reservation flows back with time."""
        self._metrics.settlements_lost.inc(sum(isinstance(one, RedisError) for one in results[: len(settled)]))
        for _ in settled:  # only this takes from the left
            self._places.leave(self._waiting.popleft()[0])

    def _answer(self, calls: Sequence[_Call], results: Sequence[Any]) -> None:
        """Gives results to the requests that wait for them.

        Raises:
            RedisError: the server refused one of them.
        """
        refused = [one for one in results if isinstance(one, RedisError)]
        for call, result in zip(calls, results, strict=True):
            if isinstance(result, RedisError):
                _give_up([call])
            elif not call.answer.done():
                call.answer.set_result(result)
        if refused:
            raise refused[0]

    def _keys(self, tenant: str) -> Sequence[str]:
        return _keys(self._prefix, tenant)

    def _failed(self, error: BaseException) -> None:
        self._metrics.shared_limits_failures.inc()
        trouble = f"{type(error).__name__}: {error}"[:300]
        if not self.away or trouble != self._trouble:
            log.warning("limits are not shared now, each gateway uses its part of them: %s", trouble)
        self.away, self._trouble = True, trouble
        _give_up(self._calls)
        self._calls.clear()
        self._metrics.shared_limits.set(0)

    def _recovered(self) -> None:
        if self.away:
            log.info("limits are shared by Redis")
        self.away, self._trouble = False, ""
        self._metrics.shared_limits.set(1)


def _arguments(id_: str, limits: Limits, amounts: Mapping[str, int]) -> str:
    """`id_`: made by a gateway, without spaces."""
    rates = "".join([f"{rate} {amounts.get(name, 0)}" for name, rate in _shown_rates(limits)])
    return f"{id_} {LEASE_S} {limits.concurrency}{rates}"


@lru_cache(maxsize=4096)  # called for each request
def _shown_rates(limits: Limits) -> tuple[tuple[str, str], ...]:
    rates = limits.rates().items()
    return tuple((name, f" {name} {rate.interval_s!r} {rate.burst}") for name, rate in rates)


@lru_cache(maxsize=4096)  # as above
def _keys(prefix: str, tenant: str) -> tuple[str, ...]:
    """The three keys of a tenant. Its name in braces is the hash tag: one slot of a cluster has all of them."""
    return tuple(f"{prefix}:{{{tenant}}}:{name}" for name in ("buckets", "running", "holds"))


def _values(line: bytes) -> "list[bytes] | ResponseError":
    first, _, rest = line.partition(b" ")
    return ResponseError(rest.decode("utf-8", "replace")) if first == b"error" else line.split(b" ")


def _give_up(calls: Iterable[_Call]) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(CountersAway())


def cancellations() -> int:
    """The number of cancellations that the current task has not handled yet."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0
