"""Reads and writes of the ledger. All calls block: they run in the writer's thread."""

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import (
    Connection,
    Integer,
    Table,
    and_,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    update,
)

from slipway_process.database_errors import UnusableDatabase
from slipway_process.database_urls import parse_url

from ..quotas.meter import Charge, Saved
from ..quotas.prices import NANO
from .json_rows import ROWS, insert_for, insert_new
from .periods import day_begin, month_begin
from .tables import (
    COUNTS,
    HOUR_KEY,
    SAVED_COUNTS,
    SCHEMA_VERSION,
    about,
    cache_hits,
    hours,
    metadata,
    open_engine,
    responses,
)

_HourKey: TypeAlias = tuple[int, str, str, str, str]
_Counts: TypeAlias = tuple[int, ...]  # as COUNTS
_REQUESTS, _ESTIMATED = COUNTS.index("requests"), COUNTS.index("estimated")
# A batch is written in parts of so many rows: ids of rows that are there are parameters, and SQL has a limit of them.
_PART_ROWS = 500
MAX_ROWS_READ = 100_000
# The largest count of a row. Two of them have a sum of 64 bits, so that no count can make an addition fail.
LARGEST_COUNT = (1 << 62) - 1
# Rows of responses that SQLite keeps, some 25 MB. A stream that a client resumes after so many others is charged again.
MAX_RESPONSES = 200_000


class Spent(msgspec.Struct, frozen=True):
    """Costs of one tenant in a day and a month, in billionths of the currency."""

    day_nano: int = 0
    month_nano: int = 0


class LedgerStore:
    """One database. It is opened, and its tables are made, with the first call."""

    def __init__(self, url: str) -> None:
        parsed = parse_url(url)
        self._engine = open_engine(parsed)
        self._insert: Any = insert_for(self._engine.dialect)
        self._add_responses = insert_new(responses, self._engine.dialect).returning(responses.c.id)
        self._id = ""

    @property
    def is_shared(self) -> bool:
        """Whether other gateways may write to the database too: not to SQLite."""
        return self._engine.dialect.name != "sqlite"

    def close(self) -> None:
        self._engine.dispose()

    def id(self) -> str:
        """Identifies the database: gateways that share one get the same id."""
        self._open()
        return self._id

    def apply(self, charges: Iterable[Charge]) -> dict[str, int]:
        """Writes charges in one transaction, each once; returns what was added to each tenant's costs, in billionths.

        A charge may come again, and grow: see `_merged`.
        """
        self._open()
        ordered = sorted(charges, key=lambda charge: charge.id)
        added: dict[str, int] = {}
        with self._engine.begin() as connection:
            totals: dict[_HourKey, list[int]] = {}
            saved: dict[_HourKey, list[int]] = {}
            for begin in range(0, len(ordered), _PART_ROWS):
                self._apply_part(connection, ordered[begin : begin + _PART_ROWS], totals, saved)
            self._add_to_hours(connection, hours, COUNTS, totals)
            self._add_to_hours(connection, cache_hits, SAVED_COUNTS, saved)
        for (_, tenant, *_), counts in totals.items():
            added[tenant] = added.get(tenant, 0) + counts[COUNTS.index("cost_nano")]
        return added

    def _apply_part(
        self,
        connection: Connection,
        charges: Sequence[Charge],
        totals: dict[_HourKey, list[int]],
        saved: dict[_HourKey, list[int]],
    ) -> None:
        wanted: dict[str, tuple[Charge, _Counts]] = {}
        for charge in charges:
            # Two requests that are one response may be in one batch.
            former, now = wanted.get(charge.id), _counts(charge)
            wanted[charge.id] = charge, _merged(former[1], now) if former else now
        rows = [(id_, charge.hour, *counts) for id_, (charge, counts) in wanted.items()]
        # Nearly all are new and need no other statement. The insert waits for a row that another gateway writes now.
        for id_ in connection.execute(self._add_responses, {ROWS: msgspec.json.encode(rows).decode()}).scalars():
            charge, counts = wanted.pop(id_)
            _add(totals, _hour_key(charge), counts)
            if charge.saved is not None:
                _add(saved, _hour_key(charge), _saved_counts(charge.saved))
        if wanted:
            self._merge_part(connection, wanted, totals)

    def _merge_part(
        self,
        connection: Connection,
        wanted: Mapping[str, tuple[Charge, _Counts]],
        totals: dict[_HourKey, list[int]],
    ) -> None:
        """Writes charges of responses that have a row already, and adds the differences to `totals`.

        The rows are locked, so that two gateways do not add the same difference twice.
        """
        chosen = select(responses).where(responses.c.id.in_(list(wanted)))
        rows = connection.execute(chosen.order_by(responses.c.id).with_for_update()).mappings()
        changed = []
        for row in rows.all():
            charge, now = wanted[row["id"]]
            former = tuple([int(row[name]) for name in COUNTS])
            grown = _merged(former, now)
            if grown != former:
                changed.append({"row": charge.id, **dict(zip(COUNTS, grown, strict=True))})
                _add(totals, _hour_key(charge), [new - old for new, old in zip(grown, former, strict=True)])
        if changed:
            values: dict[str, Any] = {name: bindparam(name) for name in COUNTS}
            connection.execute(update(responses).where(responses.c.id == bindparam("row")).values(values), changed)

    def _add_to_hours(
        self, connection: Connection, table: Table, names: Sequence[str], totals: Mapping[_HourKey, Sequence[int]]
    ) -> None:
        if not totals:
            return
        # In one order everywhere: two gateways never wait for each other's rows.
        rows = [
            dict(zip((*HOUR_KEY, *names), (*key, *map(_bounded, counts)), strict=True))
            for key, counts in sorted(totals.items())
        ]
        insert = self._insert(table)
        # A row of an earlier release may be larger.
        least = func.min if self._engine.dialect.name == "sqlite" else func.least
        added = {
            name: least(least(table.c[name], LARGEST_COUNT) + insert.excluded[name], LARGEST_COUNT) for name in names
        }
        connection.execute(insert.on_conflict_do_update(index_elements=HOUR_KEY, set_=added), rows)

    def spent(self, hour: int) -> dict[str, Spent]:
        """What each tenant spent in the day and the month of this hour."""
        self._open()
        today = hours.c.hour >= day_begin(hour)
        # SQLite adds up in 64 bits, and many rows may have more: whole units of the currency and their rest do not.
        parts = (hours.c.cost_nano // NANO, hours.c.cost_nano % NANO)
        sums = [func.sum(part).filter(today) for part in parts] + [func.sum(part) for part in parts]
        query = select(hours.c.tenant, *sums).where(hours.c.hour >= month_begin(hour)).group_by(hours.c.tenant)
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return {
            tenant: Spent(_joined(day, day_rest), _joined(month, month_rest))
            for tenant, day, day_rest, month, month_rest in rows
        }

    def usage(self, first_hour: int, end_hour: int, tenant: str = "") -> list[dict[str, Any]]:
        """Rows from `first_hour` to before `end_hour`, at most `MAX_ROWS_READ` of them; `tenant` "": of all tenants.

        `cache_hits` of their requests got responses from caches, which saved what the fields `saved_*` have.
        """
        self._open()
        of_caches = [
            func.coalesce(cache_hits.c[name], 0).label("cache_hits" if name == "hits" else f"saved_{name}")
            for name in SAVED_COUNTS
        ]
        same = and_(*(cache_hits.c[name] == hours.c[name] for name in HOUR_KEY))
        query = select(hours, *of_caches).select_from(hours.outerjoin(cache_hits, same))
        query = query.where(hours.c.hour >= first_hour, hours.c.hour < end_hour)
        if tenant:
            query = query.where(hours.c.tenant == tenant)
        with self._engine.connect() as connection:
            rows = connection.execute(query.order_by(*(hours.c[name] for name in HOUR_KEY)).limit(MAX_ROWS_READ))
            return [dict(row) for row in rows.mappings()]

    def forget(self, responses_before: int, hours_before: int) -> None:
        """Deletes rows of responses and of usage by hour from before these hours.

        Usage by hour keeps what deleted responses added to it.
        """
        self._open()
        with self._engine.begin() as connection:
            connection.execute(delete(responses).where(responses.c.hour < responses_before))
            connection.execute(delete(hours).where(hours.c.hour < hours_before))
            connection.execute(delete(cache_hits).where(cache_hits.c.hour < hours_before))

    def trim(self, running: Collection[str]) -> None:
        """Deletes the oldest responses of SQLite beyond `MAX_RESPONSES`, except running ones. PostgreSQL has room."""
        if self.is_shared:
            return
        self._open()
        row = literal_column("rowid", Integer)
        newest = select(func.max(row)).select_from(responses).scalar_subquery()
        old = (row <= newest - MAX_RESPONSES) & responses.c.id.notin_(running)
        with self._engine.begin() as connection:
            connection.execute(delete(responses).where(old))

    def _open(self) -> None:
        if self._id:
            return
        # When two gateways do this at once, one of them fails, and its writer tries again.
        metadata.create_all(self._engine)
        with self._engine.begin() as connection:
            own = {"id": uuid.uuid4().hex, "version": SCHEMA_VERSION}
            connection.execute(self._insert(about).on_conflict_do_nothing(), own)
            rows = connection.execute(select(about)).all()
        if len(rows) > 1:
            raise UnusableDatabase("the ledger was written by another release, whose tables differ")
        self._id = rows[0].id


def _counts(charge: Charge) -> _Counts:
    usage = charge.usage
    tokens = (usage.input_tokens, usage.cached_tokens, usage.output_tokens)
    return charge.requests, *map(_bounded, tokens), _bounded(charge.cost_nano), int(charge.estimated)


def _saved_counts(saved: Saved) -> _Counts:
    usage = saved.usage
    tokens = (usage.input_tokens, usage.cached_tokens, usage.output_tokens)
    return saved.responses, *map(_bounded, tokens), _bounded(saved.cost_nano)


def _bounded(count: int) -> int:
    return max(-LARGEST_COUNT, min(count, LARGEST_COUNT))


def _joined(units: Any, rest: Any) -> int:
    """An amount in nano of sums of whole units and of their rest; None: there are no rows."""
    return int(units or 0) * NANO + int(rest or 0)


def _merged(former: _Counts, now: _Counts) -> _Counts:
    """The counts to keep of two for one response: a server's own rather than an estimate, else the larger ones."""
    if former[_REQUESTS] and former[_ESTIMATED] != now[_ESTIMATED]:
        return former if now[_ESTIMATED] else now
    return tuple(map(max, former, now))


def _hour_key(charge: Charge) -> _HourKey:
    return (charge.hour, charge.tenant, charge.key, charge.model, charge.revision)


def _add(totals: dict[_HourKey, list[int]], key: _HourKey, more: Iterable[int]) -> None:
    counts = list(more)
    sums = totals.setdefault(key, [0] * len(counts))
    for place, value in enumerate(counts):
        sums[place] += value
