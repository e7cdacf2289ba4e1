"""Reads and writes of batches: made, validated, cancelled. `line_store` brings them to their end."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from slipway_process.sealing import Keyring

from ..pace import MOST_BATCHES, Pace, TimedLines
from ..states import (
    BATCH,
    CANCELLABLE,
    CANCELLED,
    CANCELLING,
    COMPLETED,
    DELETED,
    ENDED_BATCHES,
    FAILED,
    IN_PROGRESS,
    OPEN_BATCHES,
    QUEUED,
    READY,
    VALIDATING,
    LineCounts,
    count_lines,
)
from .database import Database
from .delivery_store import add_delivery
from .sealed_rows import result_row
from .slices import OWNERS, ROWS, delete_slice
from .tables import batches, deliveries, files, lines
from .usage import BATCH_BYTES, BATCH_SIZE, LINE_BYTES, LINE_SIZE, TenantUsage

Row = Mapping[str, Any]


class FileGone(Exception):
    """The input file is not there, or is being deleted."""


class TooManyBatches(Exception):
    """The batches of a tenant that have not ended are at their limit."""


@dataclass(frozen=True, slots=True)
class NewBatch:
    """`metadata`: JSON. `output_expires_s`: seconds that its results are kept; None: as long as any file."""

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    kind: str = BATCH
    metadata: str | None = None
    output_expires_s: float | None = None
    callback_url: str | None = None


@dataclass(frozen=True, slots=True)
class Validation:
    """The claim of one process on a batch that has to be validated."""

    batch: Row
    epoch: int


class BatchStore:
    """Calls take a connection in a transaction: run them with `Database.call`."""

    def __init__(
        self,
        database: Database,
        max_tenant_batches: int,
        window_s: float,
        max_tenant_webhooks: int = 1000,
        *,
        max_tenant_result_bytes: int = 1 << 30,
        keyring: Keyring | None = None,
    ) -> None:
        """`keyring`: which opens results; None: all are plain."""
        self._database, self._usage = database, TenantUsage(database, max_tenant_result_bytes)
        self._max_tenant_batches, self._max_tenant_webhooks = max_tenant_batches, max_tenant_webhooks
        self._window_s, self._keyring = window_s, keyring or Keyring.none()

    def create(self, connection: Connection, new: NewBatch) -> Row:
        """Adds a batch, with its webhook if it has a callback_url; returns its row.

        Raises:
            FileGone: its input file was deleted, or has expired.
            TooManyBatches: the tenant has as many as it may.
            TooManyWebhooks: likewise.
            TooMuchKept: its batches and results are at their limit.
        """
        self._database.lock(connection, new.tenant)
        self.check_room(connection, new.tenant)
        # Locked until the batch is there: a purge of the file would leave it a part, which then ran as if it were all.
        alive = (files.c.id == new.input_file_id, files.c.state == READY, files.c.expires_at > self._database.now)
        if connection.execute(select(files.c.id).where(*alive).with_for_update()).first() is None:
            raise FileGone
        if new.callback_url:
            add_delivery(connection, new.id, new.tenant, new.callback_url, self._max_tenant_webhooks)
        now_s = self._database.time(connection)
        named = ("id", "tenant", "endpoint", "input_file_id", "kind", "metadata", "output_expires_s")
        row = {name: getattr(new, name) for name in named}
        times = {"created_at": now_s, "expires_at": now_s + self._window_s}
        if new.kind != BATCH:
            # The client does not see this file and cannot delete it: it is purged when the batch has ended.
            connection.execute(update(files).where(files.c.id == new.input_file_id).values(state=DELETED))
        made = batches.insert().values(**row, **times, status=VALIDATING).returning(*batches.c)
        found = dict(connection.execute(made).mappings().one())
        self._usage.add(connection, {new.tenant: BATCH_BYTES + len(new.metadata or "")})
        return found

    def check_room(self, connection: Connection, tenant: str) -> None:
        """Raises TooManyBatches, TooMuchKept: a batch of this tenant would be refused now."""
        self._usage.check(connection, tenant)
        own = select(func.count()).where(batches.c.tenant == tenant, batches.c.status.in_(OPEN_BATCHES))
        if connection.execute(own).scalar_one() >= self._max_tenant_batches:
            raise TooManyBatches

    def get(self, connection: Connection, tenant: str, batch_id: str, kind: str = BATCH) -> Row | None:
        query = select(batches).where(batches.c.id == batch_id, batches.c.tenant == tenant, batches.c.kind == kind)
        row = connection.execute(query).mappings().one_or_none()
        return self._counted(connection, [row])[0] if row else None

    def listed(self, connection: Connection, tenant: str, limit: int, after: str = "") -> list[Row]:
        """Batches of a tenant, the newest first; one more than `limit` where there are more."""
        query = select(batches).where(batches.c.tenant == tenant, batches.c.kind == BATCH)
        if after:
            query = query.where(batches.c.id < after)
        rows = connection.execute(query.order_by(batches.c.id.desc()).limit(limit + 1)).mappings().all()
        return self._counted(connection, rows)

    def of_all(self, connection: Connection, tenant: str | None, limit: int, after: str = "") -> list[Row]:
        """Batches and jobs of all kinds, the newest first; one more than `limit` where there are more.

        `tenant`: whose; None: of all tenants. Only batches with results that are shown are counted: `limit` of them.
        """
        query = select(batches) if tenant is None else select(batches).where(batches.c.tenant == tenant)
        if after:
            query = query.where(batches.c.id < after)
        rows = connection.execute(query.order_by(batches.c.id.desc()).limit(limit + 1)).mappings().all()
        return self._counted(connection, rows)

    def cancel(self, connection: Connection, tenant: str, batch_id: str, kind: str = BATCH) -> tuple[Row | None, bool]:
        """Cancels a batch if its status allows it. Returns it, or None, and whether it is cancelled or will be."""
        own = (batches.c.id == batch_id, batches.c.tenant == tenant, batches.c.kind == kind)
        values = {"status": CANCELLING, "outcome": CANCELLED, "cancelling_at": self._database.now}
        done = connection.execute(update(batches).where(*own, batches.c.status.in_(CANCELLABLE)).values(values))
        row = self.get(connection, tenant, batch_id, kind)
        return row, done.rowcount == 1 or bool(row and row["status"] in (CANCELLING, CANCELLED))

    def pace(self, connection: Connection, tenant: str, endpoint: str) -> Pace:
        """What batches of a tenant took lately, and those that run now."""
        now_s = self._database.time(connection)
        mine = select(batches.c.total, batches.c.in_progress_at, batches.c.completed_at)
        mine = mine.where(batches.c.tenant == tenant, batches.c.in_progress_at.is_not(None))
        mine = mine.order_by(batches.c.id.desc()).limit(MOST_BATCHES)
        completed = connection.execute(mine.where(batches.c.status == COMPLETED, batches.c.endpoint == endpoint))
        running = connection.execute(mine.where(batches.c.status == IN_PROGRESS))
        return Pace(
            [TimedLines(row.total, row.completed_at - row.in_progress_at) for row in completed],
            [TimedLines(row.total, now_s - row.in_progress_at) for row in running],
        )

    def result(self, connection: Connection, batch_id: str) -> bytes | None:
        """The result of the batch's first line; None while there is none. Raises UnreadableSeal: its key is lost."""
        found = connection.execute(select(lines.c.result).where(lines.c.batch_id == batch_id, lines.c.n == 0)).scalar()
        return self._keyring.open(bytes(found), result_row(batch_id, 0)) if found is not None else None

    # -- validation

    def claim(self, connection: Connection, owner: str, lease_s: float, after: str = "") -> Validation | None:
        """Claims the oldest batch to validate of the tenant that follows `after`; None without one.

        Lines that another process has added to it are deleted.
        """
        now = self._database.now
        free = select(batches.c.id).where(batches.c.status == VALIDATING, batches.c.lease_until < now)
        free = free.order_by(batches.c.tenant, batches.c.id).limit(1).with_for_update(skip_locked=True)
        turns = (free.where(batches.c.tenant > after), free.where(batches.c.tenant <= after))
        found = (connection.execute(turn).scalar() for turn in turns)
        if (batch_id := next((one for one in found if one is not None), None)) is None:
            return None
        values = {"epoch": batches.c.epoch + 1, "owner": owner, "lease_until": now + lease_s}
        taken = update(batches).where(batches.c.id == batch_id).values(values).returning(*batches.c)
        row = connection.execute(taken).mappings().one()
        self._drop_lines(connection, row)
        return Validation(dict(row), row["epoch"])

    def add_lines(
        self, connection: Connection, validation: Validation, found: Iterable[tuple[int, str]], lease_s: float
    ) -> bool:
        """Adds lines by number and custom_id, and renews the lease; False when the claim has ended.

        Raises:
            TooMuchKept: the batches and results of the tenant are at their limit.
        """
        values = {"lease_until": self._database.now + lease_s}
        if connection.execute(self._own(validation).values(values)).rowcount != 1:
            return False
        rows = [
            {"batch_id": validation.batch["id"], "n": n, "custom_id": custom_id, "state": QUEUED}
            for n, custom_id in found
        ]
        if rows:
            tenant = validation.batch["tenant"]
            self._usage.check(connection, tenant)
            self._database.add(connection, lines, rows)
            self._usage.add(connection, {tenant: sum(LINE_BYTES + len(row["custom_id"]) for row in rows)})
        return True

    def start(self, connection: Connection, validation: Validation, total: int) -> bool:
        """Puts a batch in progress once all its lines are there; False when the claim has ended."""
        values = {"status": IN_PROGRESS, "in_progress_at": self._database.now, "total": total}
        return connection.execute(self._own(validation).values(values)).rowcount == 1

    def fail(self, connection: Connection, validation: Validation, errors: Sequence[Row]) -> bool:
        """Fails a batch whose file is invalid, and deletes its lines; False when the claim has ended."""
        text = json.dumps(list(errors))
        values = {"status": FAILED, "failed_at": self._database.now, "errors": text}
        if connection.execute(self._own(validation).values(values)).rowcount != 1:
            return False
        self._drop_lines(connection, validation.batch, len(text))
        return True

    def purge(self, connection: Connection, retention_s: float) -> int:
        """Deletes lines, then batches, that ended `retention_s` ago; returns how many rows, 0 when none is left."""
        ends = (batches.c[f"{status}_at"] for status in ENDED_BATCHES)
        # Retention counts from the batch's end, as it does for its files.
        old = func.coalesce(*ends, batches.c.created_at) + retention_s <= self._database.now
        ended = select(batches.c.id, batches.c.tenant, BATCH_SIZE.label("size"))
        rows = connection.execute(ended.where(batches.c.status.in_(ENDED_BATCHES), old).limit(OWNERS)).all()
        tenants, freed = {row.id: row.tenant for row in rows}, Counter[str]()
        deleted = delete_slice(connection, lines, lines.c.batch_id, list(tenants), LINE_SIZE)
        for batch_id, _, size in deleted:
            freed[tenants[batch_id]] -= size
        if len(deleted) < ROWS:
            for table, column in (
                (files, files.c.batch_id),
                (deliveries, deliveries.c.batch_id),
                (batches, batches.c.id),
            ):
                connection.execute(delete(table).where(column.in_(tenants)))
            for batch in rows:
                freed[batch.tenant] -= batch.size
        self._usage.add(connection, freed)
        return len(deleted) + len(rows)

    def _drop_lines(self, connection: Connection, batch: Mapping[Any, Any], errors_bytes: int = 0) -> None:
        """Deletes the lines of a batch that has not started; counts its `errors_bytes`."""
        own = lines.c.batch_id == batch["id"]
        size = connection.execute(select(func.sum(LINE_SIZE)).where(own)).scalar() or 0
        connection.execute(delete(lines).where(own))
        self._usage.add(connection, {batch["tenant"]: errors_bytes - int(size)})

    def _own(self, validation: Validation) -> Any:
        own = (batches.c.id == validation.batch["id"], batches.c.epoch == validation.epoch)
        return update(batches).where(*own, batches.c.status == VALIDATING)

    def _counted(self, connection: Connection, rows: Sequence[Mapping[Any, Any]]) -> list[Row]:
        """Rows with their counts. Those of a batch that has not ended are counted from its lines."""
        running = [row["id"] for row in rows if row["status"] in OPEN_BATCHES]
        grouped = select(lines.c.batch_id, lines.c.state, func.count()).where(lines.c.batch_id.in_(running))
        found: dict[str, dict[str, int]] = {}
        if running:
            for batch_id, state, count in connection.execute(grouped.group_by(lines.c.batch_id, lines.c.state)):
                found.setdefault(batch_id, {})[state] = count
        return [_with_counts(row, found.get(row["id"])) for row in rows]


def _with_counts(row: Mapping[Any, Any], by_state: Mapping[str, int] | None) -> Row:
    frozen = LineCounts(row["total"], row["completed"], row["failed"])
    counts = count_lines(by_state) if by_state is not None and row["status"] != VALIDATING else frozen
    return {str(name): value for name, value in row.items()} | {"counts": counts}
