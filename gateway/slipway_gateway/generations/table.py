"""The database of the generation log, in PostgreSQL or SQLite. All calls block: one thread at a time makes them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    delete,
    event,
    or_,
    select,
    true,
    tuple_,
)

from slipway_process.sealing import Keyring, UnreadableSeal

from ..ledger.json_rows import ROWS, insert_for
from ..ledger.retained_rows import SLICE_ROWS, SLICES, TIME, RetainedRows
from ..ledger.tables import SQLITE_BYTES
from ..telemetry.access_log import MAX_ID, clean
from .rows import LoggedGeneration

ROW_BYTES = 1024  # that a row counts as, besides its contents
AGE, SIZE = "age", "size"  # why rows are deleted
_LOOK_EACH_S = 10.0
_PAGE_ROWS = 64
_CONTENTS = ("input", "output")

metadata = MetaData()
# In the order of the fields of a LoggedGeneration, and behind them what a row counts as.
generations = Table(
    "slipway_generations",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("at", TIME, nullable=False, index=True),
    Column("tenant", String(253), nullable=False),
    Column("route", String(512), nullable=False),
    Column("revision", String(253), nullable=False),
    Column("request_id", String(128), nullable=False),
    Column("path", String(256), nullable=False),
    Column("status", Integer, nullable=False),
    Column("outcome", String(32), nullable=False),
    Column("seconds", Float, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("input_bytes", BigInteger, nullable=False),
    Column("output_bytes", BigInteger, nullable=False),
    Column("input_hash", String(64), nullable=False),
    Column("output_hash", String(64), nullable=False),
    Column("output_encoding", String(32), nullable=False),
    Column("input", LargeBinary),
    Column("output", LargeBinary),
    Column("input_omitted", String(16)),
    Column("output_omitted", String(16)),
    Column("bytes", BigInteger, nullable=False),
    Index("slipway_generations_of_tenants", "tenant", "at"),
    Index("slipway_generations_by_request", "tenant", "request_id"),
)
# What rows of each tenant count as, together.
usage = Table(
    "slipway_generation_usage",
    metadata,
    Column("tenant", String(253), primary_key=True),
    Column("bytes", BigInteger, nullable=False),
)
_LINE = msgspec.msgpack.Decoder(LoggedGeneration)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long rows stay, and how many bytes all of them may have."""

    retention_s: float
    max_bytes: int


class GenerationTable(RetainedRows):
    """Takes rows of the generation log, seals their contents, and deletes what is beyond its bounds."""

    def __init__(
        self, url: str, keyring: Keyring, bounds: Bounds, on_deleted: Callable[[str, int], None] = lambda why, n: None
    ) -> None:
        """`on_deleted`: gets why rows were deleted, and their number.

        Raises:
            ValueError: the URL names no database that is known.
        """
        super().__init__(url, metadata, (generations,), bounds.retention_s, look_each_s=_LOOK_EACH_S)
        self._keyring, self._on_deleted = keyring, on_deleted
        # Rows of a SQLite file must not fill it: without room nothing more could be deleted either.
        is_file = self.engine.dialect.name == "sqlite"
        self._max_bytes = min(bounds.max_bytes, SQLITE_BYTES // 2) if is_file else bounds.max_bytes
        if is_file:
            event.listen(self.engine, "connect", _overwrite_deleted)

    def write(self, lines: Sequence[bytes]) -> None:
        """Write encoded rows; raises what `RetainedRows.add` raises."""
        self.add({generations: [self._sealed(_LINE.decode(line)) for line in lines]}, len(lines))

    def _sealed(self, row: LoggedGeneration) -> tuple[Any, ...]:
        """The values of a row. Contents without a key are not written."""
        for name in _CONTENTS:
            content: bytes | None = getattr(row, name)
            if content is not None:
                sealed = self._keyring.seal(content, _about(row.tenant, row.id, name)) if self._keyring.is_on else None
                setattr(row, name, sealed)
        size = ROW_BYTES + len(row.input or b"") + len(row.output or b"")
        return (*msgspec.structs.astuple(row), size)

    def insert(self, connection: Connection, statement: Any, rows: str) -> None:
        """Adds rows, and what they count as to their tenants."""
        added = statement.returning(generations.c.tenant, generations.c.bytes)
        self._count(connection, connection.execute(added, {ROWS: rows}).all(), 1)

    def delete(self, connection: Connection, table: Table, which: Any) -> int:
        """Deletes rows, and takes what they count as from their tenants."""
        found = connection.execute(
            delete(generations).where(generations.c.id.in_(which)).returning(generations.c.tenant, generations.c.bytes)
        ).all()
        self._count(connection, found, -1)
        return len(found)

    def _count(self, connection: Connection, rows: Sequence[Any], sign: int) -> None:
        sums: dict[str, int] = {}
        for tenant, size in rows:
            sums[tenant] = sums.get(tenant, 0) + sign * int(size)
        if not sums:
            return
        insert = insert_for(connection.dialect)(usage)
        total = usage.c.bytes + insert.excluded.bytes
        added = insert.on_conflict_do_update(index_elements=["tenant"], set_={"bytes": total})
        # In one order everywhere: two gateways never wait for each other's rows.
        connection.execute(added, [{"tenant": tenant, "bytes": size} for tenant, size in sorted(sums.items())])

    def forget(self) -> int:
        """Deletes what is past its retention, and what is beyond the bytes of all rows: of the tenant with most its
        oldest. Returns the number of rows."""
        old, beyond = super().forget(), 0
        for _ in range(SLICES):
            with self.engine.begin() as connection:
                deleted = self._trim(connection)
            beyond += deleted
            if not deleted:
                break
        for why, count in ((AGE, old), (SIZE, beyond)):
            if count:
                self._on_deleted(why, count)
        return old + beyond

    def _trim(self, connection: Connection) -> int:
        held = [(int(size), tenant) for tenant, size in connection.execute(select(usage)) if size > 0]
        excess = sum(size for size, _ in held) - self._max_bytes
        if excess <= 0:
            return 0
        held.sort(reverse=True)
        largest, tenant = held[0]
        second = held[1][0] if len(held) > 1 else 0
        freed, want = 0, min(excess, max(largest - second, self._max_bytes // 100))
        oldest = select(generations.c.id, generations.c.bytes).where(generations.c.tenant == tenant)
        oldest = oldest.order_by(generations.c.at, generations.c.id).limit(SLICE_ROWS)
        chosen = []
        for id_, size in connection.execute(oldest.with_for_update(skip_locked=True)):
            if freed >= want:
                break
            freed += int(size)
            chosen.append(id_)
        return self.delete(connection, generations, chosen) if chosen else 0

    # -- for administrators

    def erase(self, tenant: str, request_id: str = "") -> int:
        """Deletes rows of a tenant: all, or those of a request by its own id or the client's. Returns their number."""
        self.open()
        count = 0
        which: list[Any] = [generations.c.tenant == tenant]
        if request_id:
            # As rows have it: without what a client may write and no row has.
            written = clean(request_id, MAX_ID)
            which.append(or_(generations.c.id == request_id, generations.c.request_id == written))
        while True:
            some = select(generations.c.id).where(*which).limit(SLICE_ROWS)
            with self.engine.begin() as connection:
                deleted = self.delete(connection, generations, some)
            if not deleted:
                return count
            count += deleted

    def read(
        self, tenant: str = "", since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[dict[str, Any]]:
        """Rows in the order of their times, with plain contents: of one tenant or all, from `since` to before `until`.

        A row whose contents cannot be opened has none, and says why in `unreadable`.
        """
        self.open()
        which = [generations.c.tenant == tenant] if tenant else []
        which += [generations.c.at >= self.time(since)] if since is not None else []
        which += [generations.c.at < self.time(until)] if until is not None else []
        order = (generations.c.at, generations.c.id)
        last: tuple[Any, str] | None = None
        while True:
            after = tuple_(*order) > tuple_(*last) if last else true()
            page = select(generations).where(*which, after).order_by(*order).limit(_PAGE_ROWS)
            with self.engine.connect() as connection:
                rows = [dict(row) for row in connection.execute(page).mappings()]
            yield from map(self._opened, rows)
            if len(rows) < _PAGE_ROWS:
                return
            last = rows[-1]["at"], rows[-1]["id"]

    def _opened(self, row: Mapping[str, Any]) -> dict[str, Any]:
        opened = dict(row) | {"unreadable": None}
        for name in _CONTENTS:
            if row[name] is None:
                continue
            try:
                opened[name] = self._keyring.open(bytes(row[name]), _about(row["tenant"], row["id"], name))
            except UnreadableSeal as error:
                opened |= {name: None, "unreadable": str(error)}
        return opened


def _about(tenant: str, id_: str, name: str) -> str:
    """What a sealed value is bound to."""
    return f"{generations.name}\0{tenant}\0{id_}\0{name}"


def _overwrite_deleted(connection: Any, record: object) -> None:
    connection.execute("PRAGMA secure_delete=ON")
