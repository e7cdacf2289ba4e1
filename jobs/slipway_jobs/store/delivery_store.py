"""Reads and writes of webhooks: each is added with its batch, is due when the batch has ended, and is fenced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select, update

from ..states import COMPLETED, ENDED_BATCHES, FAILED, JOB
from .database import Database
from .tables import batches, deliveries

WAITING, PENDING = "waiting", "pending"
LAST_AFTER_S = 3 * 86_400.0
_LEASE_S = 60.0  # longer than a call
_ANNOUNCED = 200


class TooManyWebhooks(Exception):
    """The webhooks of a tenant that are not delivered are at their limit."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt to deliver a webhook. `attempts`: this one included. `now_s`: by the clock of the database."""

    batch_id: str
    tenant: str
    url: str
    event: str
    event_at: float
    attempts: int
    epoch: int
    now_s: float

    @property
    def event_id(self) -> str:
        """The same id at each attempt, so that a receiver recognizes an event that it gets twice."""
        return f"evt_{self.batch_id}"


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """`state`: delivered, failed, or pending, which is tried again after `wait_s`."""

    state: str
    status: int | None = None
    error: str | None = None
    wait_s: float = 0.0

    @property
    def result(self) -> str:
        return "retried" if self.state == PENDING else self.state


def add_delivery(connection: Connection, batch_id: str, tenant: str, url: str, most: int) -> None:
    """Adds the webhook of a batch. `most`: webhooks of a tenant that may be undelivered.

    Raises:
        TooManyWebhooks: the tenant has as many as it may.
    """
    own = (deliveries.c.tenant == tenant, deliveries.c.state.in_((WAITING, PENDING)))
    if connection.execute(select(func.count()).where(*own)).scalar_one() >= most:
        raise TooManyWebhooks
    connection.execute(deliveries.insert().values(batch_id=batch_id, tenant=tenant, url=url, state=WAITING))


class DeliveryStore:
    """Calls take a connection in a transaction: run them with `Database.call`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, connection: Connection, batch_id: str) -> Mapping[str, Any] | None:
        row = connection.execute(select(deliveries).where(deliveries.c.batch_id == batch_id)).mappings().one_or_none()
        return dict(row) if row else None

    def announce(self, connection: Connection) -> int:
        """Makes webhooks due whose batch has ended; returns how many. It reads the batches, so it misses no end."""
        joined = deliveries.join(batches, deliveries.c.batch_id == batches.c.id)
        named = (batches.c.id, batches.c.kind, batches.c.status, batches.c.failed)
        ended = (deliveries.c.state == WAITING, batches.c.status.in_(ENDED_BATCHES))
        rows = connection.execute(select(*named).select_from(joined).where(*ended).limit(_ANNOUNCED)).all()
        now = self._database.now
        for batch_id, kind, status, failed in rows:
            # A job whose only request failed has failed.
            shown = FAILED if kind == JOB and status == COMPLETED and failed else status
            event = f"{'job' if kind == JOB else 'batch'}.{shown}"
            own = (deliveries.c.batch_id == batch_id, deliveries.c.state == WAITING)
            values = {"state": PENDING, "event": event, "event_at": now, "next_at": now}
            connection.execute(update(deliveries).where(*own).values(values))
        return len(rows)

    def claim(
        self, connection: Connection, limit: int, *, each: int = 100, but_not: Sequence[str] = ()
    ) -> list[Delivery]:
        """Claims webhooks that are due: one of each tenant, first attempts first, then the second ones.

        So neither receivers that are away nor those of another tenant delay a webhook for long.
        `each`: at most so many of one tenant. `but_not`: tenants that get none.
        """
        now_s, table = self._database.time(connection), deliveries.c
        due = (table.state == PENDING, table.next_at <= now_s, table.tenant.not_in(but_not))
        order = (table.attempts, table.next_at)
        place = func.row_number().over(partition_by=table.tenant, order_by=order).label("place")
        ranked = select(table.batch_id, *order, place).where(*due).subquery()
        turn = (
            select(ranked.c.batch_id)
            .where(ranked.c.place <= each)
            .order_by(ranked.c.place, ranked.c.attempts, ranked.c.next_at)
            .limit(limit)
        )
        free = select(table.batch_id).where(table.batch_id.in_(turn), *due).with_for_update(skip_locked=True)
        if not (ids := connection.execute(free).scalars().all()):
            return []
        values = {"attempts": table.attempts + 1, "epoch": table.epoch + 1, "next_at": now_s + _LEASE_S}
        taken = update(deliveries).where(table.batch_id.in_(ids)).values(values)
        named = ("batch_id", "tenant", "url", "event", "event_at", "attempts", "epoch")
        rows = connection.execute(taken.returning(*(table[name] for name in named))).mappings()
        return [Delivery(**{name: row[name] for name in named}, now_s=now_s) for row in rows]

    def record(self, connection: Connection, delivery: Delivery, outcome: DeliveryOutcome) -> bool:
        """Records the outcome of an attempt; False if it is not the last one, whose outcome alone counts."""
        table, now_s = deliveries.c, self._database.time(connection)
        next_at = now_s + outcome.wait_s
        is_late = outcome.state == PENDING and next_at > delivery.event_at + LAST_AFTER_S
        values = {"state": FAILED if is_late else outcome.state, "status_code": outcome.status}
        own = (table.batch_id == delivery.batch_id, table.epoch == delivery.epoch, table.state == PENDING)
        done = update(deliveries).where(*own).values(**values, error=outcome.error, next_at=next_at)
        return connection.execute(done).rowcount == 1
