"""Brings charges to the ledger: in batches, twice a second, from one thread; also of streams that still run."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from msgspec import to_builtins

from slipway_process.backoff import Backoff
from slipway_process.batches import Quarantine, Written, write_apart
from slipway_process.database_errors import UNAVAILABLE, is_of_record
from slipway_process.places import Places

from ..quotas.meter import Charge, Meter, Saved
from ..quotas.policy import Budget
from ..quotas.usage import Usage
from ..telemetry.metrics import GatewayMetrics
from .periods import hour_of
from .shared_spending import SharedSpending
from .spending import OwnSpending, Spending
from .store import LedgerStore, Spent

log = logging.getLogger(__name__)

# With the time of a write this is what a gateway that is killed may lose: less than a second.
_INTERVAL_S = 0.5
_BACKOFF = Backoff(1.0, 10.0)  # while the database is away
# Charges and sums that wait while the database is away: some 40 MB, with a share for each tenant. Others are lost, and
# counted.
MAX_WAITING = 100_000
_MAX_BATCH = 5000
# How often the spending that other gateways wrote is read, and old rows are deleted.
_READ_EACH_S, _TRIM_EACH_S, _FORGET_EACH_S = 5.0, 30.0, 3600.0
_RESPONSES_HOURS, _USAGE_HOURS = 7 * 24, 400 * 24
_ENDLESS = Budget()


class Ledger:
    """One gateway's access to the ledger. `run` writes until it is cancelled; `close_down` writes what is left."""

    def __init__(
        self,
        store: LedgerStore,
        metrics: GatewayMetrics,
        *,
        unix_time: Callable[[], float] = time.time,
        quarantine: Path | None = None,
    ) -> None:
        """`quarantine`: file of charges that the database refuses; None: the log alone has them."""
        self._store = store
        self._quarantine = Quarantine("ledger", quarantine, metrics.ledger_quarantined.inc)
        self._refused: set[str] = set()  # ids of running responses whose charges the database refuses
        self._metrics = metrics
        self._unix_time = unix_time
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._running: dict[Meter, int] = {}  # by running request: the part of its expected costs that is not written
        self._waiting: dict[str, Charge] = {}
        self._places = Places(MAX_WAITING)
        self._unwritten: dict[str, int] = {}  # by waiting charge: the part of its costs that is not written
        self._last: dict[str, Charge] = {}  # charges of running responses, as they were last written
        self._flushing = asyncio.Lock()
        self._failures = 0  # in a row
        self._read_s = self._trimmed_s = self._forgot_s = float("-inf")
        self.spending: Spending | SharedSpending = Spending()
        self._id = ""
        # Of the fast lane: sums by tenant, key, model, revision and hour, and the ids of those that wait.
        self._gathered: dict[tuple[int, str, str, str, str], Charge] = {}
        self._sums: set[str] = set()
        self._take_sums: Callable[[], None] = lambda: None
        metrics.ledger_waiting.set_function(lambda: len(self._waiting) + len(self._gathered))

    def join(self, spending: SharedSpending, take_sums: Callable[[], None]) -> None:
        """The fast lane spends of the same budgets. Must come before the first request.

        `take_sums`: has `gather` called with all that it has charged.
        """
        self.spending, self._take_sums = spending, take_sums

    @property
    def is_shared(self) -> bool:
        """Whether other gateways may write to the same ledger."""
        return self._store.is_shared

    @property
    def hour(self) -> int:
        return hour_of(self._unix_time())

    @property
    def id(self) -> str:
        """Identifies the database that gateways share; "" before it was opened, and where each gateway has its own."""
        return self._id

    def spent(self, tenant: str) -> Spent:
        """What a tenant spent in the current UTC day and month, as far as this gateway knows."""
        return self.spending.of(tenant, self.hour)

    def own(self, tenant: str) -> OwnSpending:
        """What a tenant spent at this gateway alone."""
        return self.spending.own(tenant, self.hour)

    def exhausted(self, tenant: str, budget: Budget) -> str:
        """The period whose budget a tenant has used up, `day` or `month`; empty when there is none."""
        return self.spending.exhausted(tenant, budget, self.hour)

    def open(self, meter: Meter, budget: Budget = _ENDLESS) -> str:
        """A request begins: until it ends, its expected costs count against the tenant's budget.

        Returns the period whose budget is used up, and then the request does not begin; else empty.
        """
        expected_nano = meter.expected_nano
        if period := self.spending.begin(meter.tenant, expected_nano, budget, meter.hour):
            return period
        self._running[meter] = expected_nano
        meter.on_turn = self._turned
        return ""

    def _turned(self, meter: Meter) -> None:
        """A request that runs is answered by a model with another price, before its response begins."""
        if meter in self._running:
            more_nano = meter.expected_nano - self._running[meter]
            self._running[meter] += more_nano
            self.spending.expect(meter.tenant, more_nano)

    def drop(self, meter: Meter) -> None:
        """A request has not begun after all."""
        self.spending.expect(meter.tenant, -self._running.pop(meter))

    def close(self, meter: Meter) -> None:
        """A request ended: its charge waits to be written. Beyond its tenant's share it is lost, and counted."""
        expected_nano = self._running.pop(meter)
        former = self._last.pop(meter.id, None)
        self._refused.discard(meter.id)
        charge = meter.charge()
        if charge is None or charge == former:
            self.spending.expect(meter.tenant, -expected_nano)
            return
        if charge.id not in self._waiting and self._places.take(charge.tenant):
            self.spending.expect(meter.tenant, -expected_nano)
            self._metrics.ledger_lost.inc()
            return
        unwritten = charge.cost_nano - (former.cost_nano if former else 0)
        self.spending.expect(charge.tenant, unwritten - self._unwritten.get(charge.id, 0) - expected_nano)
        self._waiting[charge.id], self._unwritten[charge.id] = charge, unwritten

    def gather(self, charge: Charge) -> None:
        """Takes a sum of charges, whose costs are counted as unwritten already.

        It is added to those that do not wait yet, so there are few, however long the database is away. Beyond its
        tenant's share it is lost, and counted.
        """
        about = (charge.hour, charge.tenant, charge.key, charge.model, charge.revision)
        if former := self._gathered.get(about):
            self._gathered[about] = _sum(former, charge)
        elif self._places.take(charge.tenant):
            self.spending.expect(charge.tenant, -charge.cost_nano)
            self._metrics.ledger_lost.inc(charge.requests)
        else:
            self._gathered[about] = charge

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_BACKOFF.delay_s(self._failures) or _INTERVAL_S)
            await self.flush()

    async def flush(self) -> bool:
        """Writes one batch of charges, reads totals and deletes old rows when due; whether the database took it all.

        Charges that the database refuses for their own sake are put into quarantine, and stop no others.
        """
        async with self._flushing:
            self._take_sums()
            self._let_sums_wait()
            error = await self._write(self._batch()) or await self._look()
            if error is None:
                self._failures = 0
                return True
            if not self._failures:
                log.error("the ledger cannot be written, charges wait: %s", error)
            self._metrics.ledger_failures.inc()
            self._failures += 1
            return False

    async def _write(self, batch: Sequence[Charge]) -> Exception | None:
        """Writes charges; returns why the database took no more of them, or None."""
        if not batch:
            return None
        result: Written[Charge, dict[str, int]] = await self._call(write_apart, self._store.apply, batch, is_of_record)
        for charges, added in result.parts:
            self._written(charges)
            self.spending.written(added, self.hour)
        if result.refused:
            self._written([charge for charge, _ in result.refused])
            self._refused.update(charge.id for charge, _ in result.refused)
            await self._call(self._quarantine.put, [(to_builtins(charge), error) for charge, error in result.refused])
        return result.error

    async def close_down(self) -> None:
        """Writes what waits and closes the database, at the end of the process.

        Charges that the database does not take are lost, and their number is logged.
        """
        self._take_sums()
        while (self._waiting or self._gathered) and await self.flush():
            pass
        if lost := [*self._waiting.values(), *self._gathered.values()]:
            charges = sum(charge.requests for charge in lost)
            log.error("charges are lost: the ledger cannot be written", extra={"charges": charges})
        self._thread.shutdown(wait=True)
        self._store.close()

    async def usage(self, first_hour: int, end_hour: int, tenant: str) -> tuple[str, list[dict[str, Any]]]:
        """Writes a batch that waits; returns the ledger's id and its rows from `first_hour` to before `end_hour`."""
        await self.flush()
        return await self._call(self._store.id), await self._call(self._store.usage, first_hour, end_hour, tenant)

    def _let_sums_wait(self) -> None:
        """Sums that were gathered wait to be written, as what they are from now on, once no former ones do."""
        if self._sums:
            return
        for charge in self._gathered.values():
            self._waiting[charge.id], self._unwritten[charge.id] = charge, charge.cost_nano
            self._sums.add(charge.id)
        self._gathered.clear()

    def _batch(self) -> list[Charge]:
        ended = list(self._waiting.values())[:_MAX_BATCH]
        if len(ended) < _MAX_BATCH:
            ended += self._grown(_MAX_BATCH - len(ended))
        return ended

    def _grown(self, count: int) -> list[Charge]:
        """Charges of running responses that grew since they were written; at most `count`."""
        grown: list[Charge] = []
        for meter in self._running:
            if len(grown) >= count:
                break
            charge = meter.charge()
            if charge is None or charge.id in self._waiting or charge.id in self._refused:
                continue
            if charge != self._last.get(charge.id):
                grown.append(charge)
        return grown

    def _written(self, batch: Sequence[Charge]) -> None:
        running = {meter.id: meter for meter in self._running}
        for charge in batch:
            if self._waiting.get(charge.id) is charge:
                del self._waiting[charge.id]
                self._sums.discard(charge.id)
                self._places.leave(charge.tenant)
                self.spending.expect(charge.tenant, -self._unwritten.pop(charge.id))
            if meter := running.get(charge.id):
                former = self._last.get(charge.id)
                self._last[charge.id] = charge
                part = min(self._running[meter], charge.cost_nano - (former.cost_nano if former else 0))
                self._running[meter] -= part
                self.spending.expect(charge.tenant, -part)

    async def _look(self) -> Exception | None:
        """Reads totals and deletes old rows, when due; returns why the database did not do it, or None."""
        try:
            await self._read_and_tidy()
        except UNAVAILABLE as error:
            return error
        return None

    async def _read_and_tidy(self) -> None:
        now_s = time.monotonic()
        if now_s - self._forgot_s >= _FORGET_EACH_S:
            self._forgot_s = now_s
            await self._call(self._store.forget, self.hour - _RESPONSES_HOURS, self.hour - _USAGE_HOURS)
        if now_s - self._trimmed_s >= _TRIM_EACH_S:
            self._trimmed_s = now_s
            await self._call(self._store.trim, [meter.id for meter in self._running])
        if now_s - self._read_s >= _READ_EACH_S:
            self._read_s, hour = now_s, self.hour
            self._id = await self._call(self._store.id) if self.is_shared else ""
            self.spending.read(await self._call(self._store.spent, hour), hour)

    async def _call(self, function: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *given)


def _sum(one: Charge, other: Charge) -> Charge:
    """Charges of the same tenant, key, model, revision and hour. The sum has the id of the first one."""
    return msgspec.structs.replace(
        one,
        usage=_both(one.usage, other.usage),
        cost_nano=one.cost_nano + other.cost_nano,
        estimated=one.estimated + other.estimated,
        requests=one.requests + other.requests,
        saved=_saved_by_both(one.saved, other.saved),
    )


def _saved_by_both(one: Saved | None, other: Saved | None) -> Saved | None:
    if one is None or other is None:
        return one or other
    responses = one.responses + other.responses
    return Saved(_both(one.usage, other.usage), one.cost_nano + other.cost_nano, responses)


def _both(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.input_tokens + other.input_tokens,
        one.output_tokens + other.output_tokens,
        one.cached_tokens + other.cached_tokens,
    )


def new_id() -> str:
    """The id of a sum of charges."""
    return uuid.uuid4().hex
