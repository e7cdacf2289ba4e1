"""The loop of the process: records results, ends batches, validates new ones, claims lines and sends them.

Turns run one after the other, so that only one place writes. Waiting lines stay in the database: a claimed line is sent
at once.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from slipway_process.backoff import Backoff
from slipway_process.database_errors import UNAVAILABLE, is_of_record
from slipway_process.shares import Shares

from ..settings import JobsSettings
from ..states import FAILED, QUEUED
from ..store.database import Database
from ..store.line_store import LineClaim, LineResult, LineStore
from ..telemetry import JobsMetrics
from ..window import Window
from .gateway_calls import GatewayCalls, cancelled
from .validation import Validator

log = logging.getLogger(__name__)

_TICK_S = 0.5  # until the next turn when no event comes
_GATHER_S = 0.01  # results that come at once are recorded in one transaction
_SWEEP_EACH_S, _PURGE_EACH_S, _COUNT_EACH_S = 0.25, 60.0, 10.0
_BACKOFF = Backoff(0.5, 10.0)  # while the database cannot be used
_MAX_WINDOWS = 4096
_PURGES, _PURGE_AGAIN_S = 20, 0.5  # slices in one turn, and when the next ones follow if more is left


class Dispatcher:
    """The loop of one process. `purge`: deletes a slice of what is past its retention; returns how many rows."""

    def __init__(
        self,
        settings: JobsSettings,
        database: Database,
        line_store: LineStore,
        calls: GatewayCalls,
        validator: Validator,
        metrics: JobsMetrics,
        *,
        purge: Callable[[], Any],
    ) -> None:
        self._settings, self._database, self._lines = settings, database, line_store
        self._calls, self._validator, self._metrics, self._purge = calls, validator, metrics, purge
        self._clock = asyncio.get_running_loop().time
        self._wake = asyncio.Event()
        self._running: dict[asyncio.Task[None], LineClaim] = {}
        self._results: list[LineResult] = []
        self._shares = Shares(settings.max_concurrency)  # of lines in flight, or with a result that is not recorded
        self._windows: OrderedDict[str, Window] = OrderedDict()
        self._next: dict[str, float] = {}  # when each regular task is due next
        self._failures = 0  # of turns, in a row
        self._last_tenant, self._is_full = "", False
        self._claims = self._short_claims = 0  # since the last count: all, and those that ended for want of a place
        self._validating: asyncio.Task[bool] | None = None
        self._suspect: asyncio.Task[None] | None = None
        self._isolates_since_s: float | None = None
        self._isolates_from_s = 0.0
        self.draining = False
        self.trouble = "the database was not opened yet"
        metrics.in_flight.set_function(lambda: len(self._running))

    def wake(self) -> None:
        """There is something to do: the next turn begins at once."""
        self._wake.set()

    async def run(self) -> None:
        """Runs turns until it is cancelled, or until it drains and no line is in flight."""
        while not (self.draining and not self._running and not self._results):
            try:
                more = await self._turn()
                self.trouble, self._failures = "", 0
            except UNAVAILABLE as error:
                self._failed(error)
                more = False
            await self._sleep(more)

    async def close(self) -> None:
        """Cancels calls in flight and gives their lines back, so that other processes may claim them at once."""
        await cancelled({*self._running, *([self._validating] if self._validating else [])})
        try:
            await self._record()
            await self._database.call(self._lines.give_back)
        except UNAVAILABLE as error:
            log.warning("lines wait until their lease ends: the database cannot be written: %s", error)

    async def _turn(self) -> bool:
        """One turn of the loop; returns whether the next one follows at once."""
        if not self.draining and self._is_due("purge", _PURGE_EACH_S):
            await self._purge_old()  # before anything that a full database does not take
        await self._record()
        if self._is_due("renew", self._settings.lease_s / 3):
            await self._database.call(self._lines.renew, list(self._running.values()))
        if self._is_due("sweep", _SWEEP_EACH_S):
            await self._end_batches()
        if self.draining:
            return False
        if self._is_due("count", _COUNT_EACH_S):
            await self._count_waiting()
        isolates = await self._isolates()
        self._validate(starts=not isolates)
        if isolates and self._validating is None:
            return await self._claim_suspect()
        return await self._claim()

    def _validate(self, *, starts: bool) -> None:
        """Validates the next batch in a task beside the turns, which go on: a long file takes longer than a lease."""
        validated = starts and self._validating is None
        if self._validating is not None and self._validating.done():
            done, self._validating = self._validating, None
            validated = _validated(done) and starts
        if validated:
            self._validating = asyncio.create_task(self._validator.next())
            self._validating.add_done_callback(lambda _: self.wake())

    def _failed(self, error: BaseException) -> None:
        if not self.trouble or not self._failures:
            log.error("the database cannot be used, batches wait: %s", error)
        self._metrics.database_failures.inc()
        self.trouble = f"the database cannot be used: {type(error).__name__}"
        # Leases ran on meanwhile: those of lines in flight are renewed before anything else, or others send the lines.
        self._next.pop("renew", None)
        self._failures += 1

    async def _sleep(self, more: bool) -> None:
        if self._failures:
            await asyncio.sleep(_BACKOFF.delay_s(self._failures))
            return
        if not more:
            try:
                async with asyncio.timeout(_TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
        self._wake.clear()
        await asyncio.sleep(_GATHER_S)

    # -- results

    async def _record(self) -> None:
        if not (results := list(self._results)):
            return
        found = await self._database.write_apart(self._lines.record, results)
        # Results that came meanwhile stay.
        self._results[: len(results)] = found.left
        for part, taken in found.parts:
            for result, is_mine in zip(part, taken, strict=True):
                self._shares.give_back(result.claim.batch.tenant)
                self._metrics.lines.labels(result.state if is_mine else "superseded").inc()
        for result, error in found.refused:
            self._refused(result, error)
        if found.error is not None:
            raise found.error

    def _refused(self, result: LineResult, error: Exception) -> None:
        """Gives a line whose result the database refuses another one, once; else its lease ends, and it runs again."""
        self._metrics.lines.labels("refused").inc()
        about = {"batch": result.claim.batch.id, "line": result.claim.n}
        log.error("the result of a line cannot be stored: %s", type(error).__name__, extra=about)
        if result.replaces:
            self._shares.give_back(result.claim.batch.tenant)
        else:
            self._results.append(self._calls.fail_inside(result.claim, "The result of this request cannot be stored."))

    async def _end_batches(self) -> None:
        self._metrics.lines.labels(FAILED).inc(await self._database.call(self._lines.fail_lost))
        for batch_id in await self._database.call(self._lines.sweep):
            try:
                await self._end_batch(batch_id)
            except Exception as error:
                if not is_of_record(error):
                    raise
                # Of one batch, which does not keep the others from their end.
                log.exception("a batch cannot be ended", extra={"batch": batch_id})

    async def _end_batch(self, batch_id: str) -> None:
        while await self._database.call(self._lines.render, batch_id):
            pass
        if status := await self._database.call(self._lines.finish, batch_id):
            self._metrics.batches.labels(status).inc()
            log.info("a batch ended", extra={"batch": batch_id, "status": status})

    async def _count_waiting(self) -> None:
        """Count the lines that wait; and say whether more processes would send them sooner.

        They would where most claims since the last count ended for want of a place. Otherwise lines wait for the
        windows of their tenants, that is for the gateways.
        """
        waiting = (await self._database.call(self._lines.counts)).get(QUEUED, 0)
        self._metrics.waiting.set(waiting)
        self._metrics.short.set(waiting if 0 < self._claims <= 2 * self._short_claims else 0)
        self._claims = self._short_claims = 0

    async def _purge_old(self) -> None:
        for _ in range(_PURGES):
            if not await self._purge():
                return
        # Otherwise what is made in a minute might be more than is deleted in one.
        self._next["purge"] = self._clock() + _PURGE_AGAIN_S

    def _is_due(self, name: str, each_s: float) -> bool:
        now_s = self._clock()
        if now_s < self._next.get(name, 0.0):
            return False
        self._next[name] = now_s + each_s
        return True

    # -- claims

    async def _claim(self) -> bool:
        """Claims and sends as many lines as there is room for, tenant after tenant; whether it found any."""
        self._claims += 1
        if not self._has_room():
            self._short_claims += 1
            return False
        turn = await self._database.call(self._lines.runnable, self._last_tenant)
        if turn.is_full and not self._is_full:
            log.warning("lines wait: the database has no room for results (--max-database-bytes)")
        self._is_full = turn.is_full
        tenants = {batch.tenant for batch in turn.batches}
        share = max(1, max(map(self._shares.room, tenants), default=0) // max(1, len(tenants)))
        found, served = False, turn.last
        for batch in turn.batches:
            window = self._window(batch.tenant)
            count = min(self._shares.room(batch.tenant), window.room(self._clock()), share)
            if count <= 0:
                continue
            for claim in await self._database.call(self._lines.claim, batch, count):
                self._begin(claim, window)
                found, served = True, batch.tenant
        self._last_tenant = served
        self._short_claims += any(
            self._shares.room(name) <= 0 < self._window(name).room(self._clock()) for name in tenants
        )
        return found

    async def _isolates(self) -> bool:
        """Whether a line runs alone or has to, so that no other begins. Such lines get half of the time at most."""
        if self._suspect is not None:
            return True
        now_s = self._clock()
        if now_s < self._isolates_from_s:
            return False
        found = await self._database.call(self._lines.has_suspect)
        self._isolates_since_s = (self._isolates_since_s or now_s) if found else None
        return found

    async def _claim_suspect(self) -> bool:
        """Claims a line that has to run alone, if nothing else is in flight; whether one runs."""
        if self._running or self._results:
            return False
        for claim in await self._database.call(self._lines.claim_suspect):
            log.warning(
                "a line runs alone: processes ended while it was in flight",
                extra={"batch": claim.batch.id, "line": claim.n},
            )
            self._suspect = self._begin(claim, self._window(claim.batch.tenant))
        return self._suspect is not None

    def _begin(self, claim: LineClaim, window: Window) -> asyncio.Task[None]:
        window.begun()
        self._shares.taken[claim.batch.tenant] += 1
        task = asyncio.create_task(self._send(claim, window))
        self._running[task] = claim
        task.add_done_callback(self._ended)
        return task

    def _has_room(self) -> bool:
        return self._shares.taken.total() < self._shares.most

    def _window(self, tenant: str) -> Window:
        window = self._windows.setdefault(tenant, Window(float(self._settings.max_concurrency)))
        self._windows.move_to_end(tenant)
        if len(self._windows) > _MAX_WINDOWS:
            self._windows.popitem(last=False)
        return window

    async def _send(self, claim: LineClaim, window: Window) -> None:
        began_s = self._clock()
        try:
            called = await self._calls.send(claim)
        except Exception:
            log.exception("a line failed inside of the process", extra={"batch": claim.batch.id, "line": claim.n})
            window.broke()
            self._results.append(self._calls.fail_inside(claim, "The process failed to send this request."))
            return
        except BaseException:
            window.broke()
            raise
        result = called.result
        if called.refused:
            wait_s = window.refused(began_s, self._clock(), called.retry_after_s)
            result = LineResult(claim, QUEUED, attempts=claim.attempts, wait_s=wait_s)
        elif result.state == QUEUED:
            window.broke()
        else:
            window.succeeded()
            self._metrics.seconds.observe(self._clock() - began_s)
        self._results.append(result)

    def _ended(self, task: asyncio.Task[None]) -> None:
        claim = self._running.pop(task)
        if task.cancelled() or task.exception():
            self._shares.give_back(claim.batch.tenant)  # there is no result
        if task is self._suspect:
            now_s = self._clock()
            self._isolates_from_s = 2 * now_s - (self._isolates_since_s or now_s)
            self._suspect = self._isolates_since_s = None
        if not task.cancelled() and (error := task.exception()):
            # The line's lease ends, and it is claimed again.
            log.error("a line failed inside of the process", exc_info=error)
        self.wake()


def _validated(done: "asyncio.Task[bool]") -> bool:
    """Whether a batch was validated.

    Raises the errors in `UNAVAILABLE`. Any other one is of one batch: it is read again when its lease has ended, and
    fails in the end.
    """
    try:
        return done.result()
    except UNAVAILABLE:
        raise
    except Exception:
        log.exception("a batch cannot be validated")
        return False
