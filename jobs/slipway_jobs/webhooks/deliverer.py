"""The loop of webhooks: claims those that are due, sends them and records the outcomes."""

import asyncio
import functools
import logging
import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from slipway_process.database_errors import UNAVAILABLE, is_of_record
from slipway_process.shares import Shares

from ..store.database import Database
from ..store.delivery_store import Delivery, DeliveryOutcome, DeliveryStore
from ..telemetry import JobsMetrics
from .receivers import ReceiverReply, Receivers
from .signing import secret_of, sign

log = logging.getLogger(__name__)
# Delays after each failed attempt; the last attempt is within three days.
DELAYS_S = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 72_000.0)
_AT_ONCE = 8  # webhooks in flight; the last two are for tenants that have none in flight
_TICK_S, _PAUSE_S = 1.0, 5.0
_GONE = 410


class Deliverer:
    """Delivers webhooks in one process. `secrets`: of the release, the newest first."""

    def __init__(
        self,
        database: Database,
        store: DeliveryStore,
        receivers: Receivers,
        secrets: Sequence[bytes],
        metrics: JobsMetrics,
    ) -> None:
        self._database, self._store, self._receivers = database, store, receivers
        self._secrets, self._metrics = secrets, metrics
        self._shares = Shares(_AT_ONCE)
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs until cancelled. A webhook in flight then is sent again after its lease has ended, with the same id."""
        try:
            while True:
                try:
                    started = await self.turn()
                except UNAVAILABLE as error:
                    log.warning("webhooks wait: the database cannot be used: %s", error)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                if not started:
                    await asyncio.sleep(_TICK_S)
        finally:
            for task in self._running:
                task.cancel()
            await self.idle()

    async def turn(self) -> int:
        """Starts webhooks that are due, as many as there is room for; returns how many. Raises as `UNAVAILABLE`."""
        await self._database.call(self._store.announce)
        busy = tuple(self._shares.taken)
        found = await self._claim(_AT_ONCE - len(self._running), each=1, but_not=busy)
        return found + await self._claim(_AT_ONCE - len(self._running) - self._shares.reserve)

    async def idle(self) -> None:
        """Returns when no webhook is in flight."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _claim(self, limit: int, *, each: int = _AT_ONCE, but_not: tuple[str, ...] = ()) -> int:
        if limit <= 0:
            return 0
        found = await self._database.call(self._store.claim, limit, each=each, but_not=but_not)
        for delivery in found:
            self._shares.taken[delivery.tenant] += 1
            task = asyncio.create_task(self._deliver(delivery))
            self._running.add(task)
            task.add_done_callback(functools.partial(self._ended, delivery))
        return len(found)

    def _ended(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._shares.give_back(delivery.tenant)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            outcome = outcome_of(delivery, await self._send(delivery))
        except Exception:  # of one webhook, which is not to end the others
            log.exception("a webhook failed inside of the process", extra={"batch": delivery.batch_id})
            outcome = DeliveryOutcome("failed", error="The process failed to send it.")
        try:
            if await self._record(delivery, outcome):
                self._metrics.webhooks.labels(outcome.result).inc()
        except UNAVAILABLE as error:
            log.warning("the outcome of a webhook is not recorded, it is sent again: %s", error)
        except Exception:  # its lease ends, and it is sent again
            log.exception("the outcome of a webhook is not recorded", extra={"batch": delivery.batch_id})

    async def _record(self, delivery: Delivery, outcome: DeliveryOutcome) -> bool:
        """Records an outcome, or that it cannot be stored; returns whether it is the last. Raises as `UNAVAILABLE`."""
        try:
            return await self._database.call(self._store.record, delivery, outcome)
        except Exception as error:
            if not is_of_record(error):
                raise
            log.exception("the outcome of a webhook cannot be stored", extra={"batch": delivery.batch_id})
            outcome = replace(outcome, state="failed", error="The outcome of the attempt cannot be stored.")
            return await self._database.call(self._store.record, delivery, outcome)

    async def _send(self, delivery: Delivery) -> ReceiverReply:
        body = event_body(delivery)
        secrets = [secret_of(secret, delivery.tenant) for secret in self._secrets]
        headers = sign(secrets, delivery.event_id, int(delivery.now_s), body)
        return await self._receivers.post(delivery.url, body, headers)


def event_body(delivery: Delivery) -> bytes:
    """The event in OpenAI's shape, the same at each attempt."""
    event = {
        "id": delivery.event_id,
        "object": "event",
        "created_at": int(delivery.event_at),
        "type": delivery.event,
        "data": {"id": delivery.batch_id},
    }
    return msgspec.json.encode(event)


def outcome_of(delivery: Delivery, reply: ReceiverReply) -> DeliveryOutcome:
    """Whether a reply means delivered, failed (410, or no attempt is left), or tried again, and after how long."""
    if reply.status is not None and 200 <= reply.status < 300:
        return DeliveryOutcome("delivered", reply.status)
    error = reply.error or f"The receiver answered {reply.status}."
    if reply.status == _GONE or delivery.attempts > len(DELAYS_S):
        return DeliveryOutcome("failed", reply.status, error)
    delay_s = DELAYS_S[delivery.attempts - 1] * random.uniform(0.9, 1.0)
    return DeliveryOutcome("pending", reply.status, error, max(delay_s, min(reply.retry_after_s or 0.0, 3600.0)))
