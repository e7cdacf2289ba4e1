"""The ledger of lines: fenced claims, one result, one end; SQLite and PostgreSQL alike."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, select, update

from slipway_jobs.input_line import InvalidLine, read_line
from slipway_jobs.states import BATCH, CANCELLED, COMPLETED, DELETED, EXPIRED, FAILED, IN_PROGRESS, INPUTS, QUEUED
from slipway_jobs.store.batch_store import BatchStore, FileGone, NewBatch, TooManyBatches
from slipway_jobs.store.database import Database
from slipway_jobs.store.file_store import (
    INTERNAL,
    PAGE_BYTES,
    DatabaseFull,
    FileStore,
    NewFile,
    TooMuchStored,
    UploadEnded,
)
from slipway_jobs.store.line_store import (
    ALONE_AFTER,
    MAX_LISTED,
    MAX_TENANTS,
    LineClaim,
    LineResult,
    LineStore,
    RunnableBatch,
    result_line,
)
from slipway_jobs.store.tables import SCHEMA_VERSION, about, batches, files, inputs, lines, usage
from slipway_jobs.store.usage import LINE_BYTES
from tests.jobs.world import store_file

LINES = 5


@dataclass
class Ledger:
    """One batch of five lines, and two processes."""

    database: Database
    files: FileStore
    batches: BatchStore
    one: LineStore
    two: LineStore
    batch: RunnableBatch

    async def claim(self, store: LineStore, limit: int = LINES) -> list[LineClaim]:
        return await self.database.call(store.claim, self.batch, limit)

    async def record(self, store: LineStore, *claims: LineClaim, state: str = COMPLETED) -> list[bool]:
        results = [LineResult(one, state, result_line(one.batch.id, one.n, one.custom_id, {})) for one in claims]
        return await self.database.call(store.record, results)

    async def age_leases(self) -> None:
        """As if a lease's time went by."""

        def age(connection: Connection) -> None:
            connection.execute(update(lines).values(lease_until=lines.c.lease_until - 1000))
            connection.execute(update(batches).values(lease_until=batches.c.lease_until - 1000))

        await self.database.call(age)

    async def end(self) -> str | None:
        """The status, when nothing of the batch is open."""
        for batch_id in await self.database.call(self.one.sweep):
            while await self.database.call(self.one.render, batch_id):
                pass
            await self.database.call(self.one.finish, batch_id)
        return str((await self.shown())["status"])

    async def shown(self) -> dict[str, object]:
        row = await self.database.call(self.batches.get, "t", self.batch.id)
        assert row
        return dict(row)


@pytest.fixture
async def ledger(url: str) -> AsyncIterator[Ledger]:
    database = Database(url)
    store, made = FileStore(database, 10_000), BatchStore(database, 2, 1000.0)
    try:
        await store_file(database, "file-1", data=[b"line %d\n" % n for n in range(LINES)])
        await database.call(made.create, NewBatch("batch_1", "t", "/v1/chat/completions", "file-1"))
        validation = await database.call(made.claim, "one", 10.0)
        assert validation
        await database.call(made.add_lines, validation, [(n, f"id-{n}") for n in range(LINES)], 10.0)
        assert await database.call(made.start, validation, LINES)
        one, two = (LineStore(database, owner, 10.0, 1000.0) for owner in ("one", "two"))
        [batch] = (await database.call(one.runnable)).batches
        yield Ledger(database, store, made, one, two, batch)
    finally:
        database.close()


async def test_a_line_is_claimed_by_one_process(ledger: Ledger) -> None:
    first, second = await asyncio.gather(ledger.claim(ledger.one, 3), ledger.claim(ledger.two, 3))
    assert sorted(claim.n for claim in first + second) == list(range(LINES))
    assert {claim.data for claim in first + second} == {b"line %d\n" % n for n in range(LINES)}
    assert await ledger.claim(ledger.one) == []


async def test_a_claim_that_another_process_took_over_records_nothing(ledger: Ledger) -> None:
    stale = await ledger.claim(ledger.one)
    await ledger.age_leases()
    await ledger.end()
    # Between the end of its lease and the next claim the line belongs to no process.
    assert await ledger.record(ledger.one, stale[0]) == [False]
    fresh = await ledger.claim(ledger.two)
    assert [claim.epoch for claim in fresh] == [2] * LINES
    assert await ledger.record(ledger.one, *stale, state=FAILED) == [False] * LINES
    assert await ledger.record(ledger.two, *fresh) == [True] * LINES
    assert await ledger.record(ledger.two, *fresh, state=FAILED) == [False] * LINES
    await ledger.database.call(ledger.one.renew, stale)
    assert await ledger.end() == COMPLETED
    shown = await ledger.shown()
    assert (shown["completed"], shown["failed"], shown["error_file_id"]) == (LINES, 0, None)


async def test_a_claim_that_is_renewed_is_not_taken_over(ledger: Ledger) -> None:
    claims = await ledger.claim(ledger.one)
    await ledger.age_leases()
    await ledger.database.call(ledger.one.renew, claims)
    await ledger.end()
    assert await ledger.claim(ledger.two) == []
    assert await ledger.record(ledger.one, *claims) == [True] * LINES


async def test_a_line_that_waits_is_claimed_after_its_time(ledger: Ledger) -> None:
    [claim] = await ledger.claim(ledger.one, 1)
    waits = LineResult(claim, QUEUED, attempts=2, wait_s=1000.0)
    assert await ledger.database.call(ledger.one.record, [waits]) == [True]
    assert [one.n for one in await ledger.claim(ledger.two)] == [1, 2, 3, 4]
    await ledger.database.call(lambda connection: connection.execute(update(lines).values(ready_at=0.0)))
    assert [(one.n, one.attempts, one.epoch) for one in await ledger.claim(ledger.two)] == [(0, 2, 2)]


async def test_a_cancelled_batch_waits_for_what_is_in_flight_and_keeps_it(ledger: Ledger) -> None:
    running = await ledger.claim(ledger.one, 2)
    row, is_cancelled = await ledger.database.call(ledger.batches.cancel, "t", "batch_1")
    assert row and row["status"] == "cancelling" and is_cancelled
    assert await ledger.claim(ledger.two) == []
    assert await ledger.end() == "cancelling"
    assert await ledger.record(ledger.one, running[0]) == [True]
    # The other one's process died.
    await ledger.age_leases()
    assert await ledger.end() == CANCELLED
    shown = await ledger.shown()
    assert (shown["completed"], shown["failed"]) == (1, 4)
    assert await ledger.record(ledger.one, running[1]) == [False]


async def test_a_batch_that_ends_while_it_is_cancelled_has_one_end(ledger: Ledger) -> None:
    claims = await ledger.claim(ledger.one)
    await ledger.record(ledger.one, *claims)
    await ledger.database.call(ledger.one.sweep)  # finalizing
    row, is_cancelled = await ledger.database.call(ledger.batches.cancel, "t", "batch_1")
    assert row and (row["status"], is_cancelled) == ("finalizing", False)
    ends = await asyncio.gather(
        ledger.database.call(ledger.one.finish, "batch_1"), ledger.database.call(ledger.two.finish, "batch_1")
    )
    assert sorted(map(str, ends)) == ["None", COMPLETED]
    row, is_cancelled = await ledger.database.call(ledger.batches.cancel, "t", "batch_1")
    assert row and (row["status"], is_cancelled) == (COMPLETED, False)


async def test_a_window_that_ends_keeps_what_ran(ledger: Ledger) -> None:
    claims = await ledger.claim(ledger.one, 2)
    await ledger.record(ledger.one, claims[0])
    await ledger.database.call(lambda connection: connection.execute(update(batches).values(expires_at=1.0)))
    assert await ledger.end() == "finalizing"
    assert await ledger.record(ledger.one, claims[1]) == [True]
    assert await ledger.end() == EXPIRED
    error_file = await ledger.database.call(ledger.files.get, "t", str((await ledger.shown())["error_file_id"]))
    assert error_file
    rows = await ledger.database.call(ledger.files.page, error_file, -1)
    assert [n for n, _ in rows] == [2, 3, 4]
    assert sum(len(data) for _, data in rows) == error_file["bytes"]


async def test_a_validation_that_another_process_took_over_starts_nothing(ledger: Ledger) -> None:
    await ledger.database.call(ledger.batches.create, NewBatch("batch_2", "t", "/v1/embeddings", "file-1"))
    stale = await ledger.database.call(ledger.batches.claim, "one", 10.0)
    assert stale and await ledger.database.call(ledger.batches.claim, "two", 10.0) is None
    assert await ledger.database.call(ledger.batches.add_lines, stale, [(0, "a")], 10.0)
    await ledger.age_leases()
    fresh = await ledger.database.call(ledger.batches.claim, "two", 10.0)
    assert fresh
    assert not await ledger.database.call(ledger.batches.add_lines, stale, [(0, "a")], 10.0)
    assert not await ledger.database.call(ledger.batches.start, stale, 1)
    assert not await ledger.database.call(ledger.batches.fail, stale, [])
    assert await ledger.database.call(ledger.batches.add_lines, fresh, [(0, "a")], 10.0)
    assert await ledger.database.call(ledger.batches.start, fresh, 1)


async def test_the_limits_of_a_tenant_hold(ledger: Ledger) -> None:
    await ledger.database.call(ledger.batches.create, NewBatch("batch_2", "t", "/x", "file-1", INPUTS))
    with pytest.raises(TooManyBatches):
        await ledger.database.call(ledger.batches.create, NewBatch("batch_3", "t", "/x", "file-1"))
    await store_file(ledger.database, "file-3", "other")
    await ledger.database.call(ledger.batches.create, NewBatch("batch_4", "other", "/x", "file-3"))
    new = NewFile("file-2", "t", 1000.0)
    await ledger.database.call(ledger.files.begin, new)
    await ledger.database.call(ledger.files.add, "file-2", 0, [b"x" * 10_000])
    with pytest.raises(TooMuchStored):
        await ledger.database.call(ledger.files.finish, new)


async def test_a_deleted_file_goes_when_no_batch_needs_it(ledger: Ledger) -> None:
    assert await ledger.database.call(ledger.files.delete, "t", "file-1")
    assert await ledger.database.call(ledger.files.purge) == 0
    claims = await ledger.claim(ledger.one)
    await ledger.record(ledger.one, *claims)
    assert await ledger.end() == COMPLETED
    while await ledger.database.call(ledger.files.purge):
        pass
    await ledger.database.call(lambda connection: connection.execute(update(batches).values(completed_at=1.0)))
    while await ledger.database.call(ledger.batches.purge, 1000.0):
        pass
    left = await ledger.database.call(
        lambda connection: [connection.execute(select(one)).all() for one in (files, inputs, batches, lines)]
    )
    assert left == [[], [], [], []]


@pytest.mark.parametrize("kind", [BATCH, INPUTS])
async def test_what_a_batch_reads_counts_for_its_tenant_until_it_has_ended(ledger: Ledger, kind: str) -> None:
    """Deleted by its client, or hidden from it: as long as the bytes are there, and no longer."""

    async def stored(name: str) -> None:
        await ledger.database.call(ledger.files.begin, NewFile(name, "t", 1000.0))
        await ledger.database.call(ledger.files.add, name, 0, [b"x" * 7_000])
        await ledger.database.call(ledger.files.finish, NewFile(name, "t", 1000.0))

    await stored("file-2")
    await ledger.database.call(ledger.batches.create, NewBatch("batch_2", "t", "/x", "file-2", kind))
    if kind == BATCH:
        assert await ledger.database.call(ledger.files.delete, "t", "file-2")
    with pytest.raises(TooMuchStored):
        await stored("file-3")
    await ledger.database.call(ledger.files.drop, "file-3")
    validation = await ledger.database.call(ledger.batches.claim, "one", 10.0)
    assert validation and await ledger.database.call(ledger.batches.fail, validation, [])
    await stored("file-4")


@pytest.mark.parametrize("kind", [BATCH, INPUTS])
async def test_a_batch_of_a_file_that_is_deleted_meanwhile_is_not_made(ledger: Ledger, kind: str) -> None:
    """A purge that began would leave it a part of the lines, which would run as if they were all."""
    for name, values in (("file-2", {"state": DELETED}), ("file-3", {"expires_at": 1.0})):
        await store_file(ledger.database, name)
        gone = update(files).where(files.c.id == name).values(values)
        await ledger.database.call(lambda connection, gone=gone: connection.execute(gone))  # type: ignore[misc]
        with pytest.raises(FileGone):
            await ledger.database.call(ledger.batches.create, NewBatch("batch_2", "t", "/x", name, kind))
    with pytest.raises(FileGone):
        await ledger.database.call(ledger.batches.create, NewBatch("batch_2", "t", "/x", "file-9", kind))


async def test_a_line_without_its_input_ends_no_process(ledger: Ledger) -> None:
    lost = delete(inputs).where(inputs.c.n == 1)
    await ledger.database.call(lambda connection: connection.execute(lost))
    claims = await ledger.claim(ledger.one)
    assert [one.data for one in claims if one.n < 2] == [b"line 0\n", b""] and len(claims) == LINES
    with pytest.raises(InvalidLine):
        read_line(b"", ledger.batch.endpoint)


async def test_an_upload_that_takes_too_long_leaves_no_row(ledger: Ledger) -> None:
    """Lines that come after its file was deleted would stay for ever, in the sum of all tenants' rows."""
    new = NewFile("file-2", "t", 1000.0)
    await ledger.database.call(ledger.files.begin, new)
    await ledger.database.call(ledger.files.add, new.id, 0, [b"{}\n"])
    old = update(files).where(files.c.id == new.id).values(created_at=1.0)
    await ledger.database.call(lambda connection: connection.execute(old))
    for purged in (False, True):
        while purged and await ledger.database.call(ledger.files.purge):
            pass
        with pytest.raises(UploadEnded):
            await ledger.database.call(ledger.files.add, new.id, 1, [b"{}\n"])
        with pytest.raises(UploadEnded):
            await ledger.database.call(ledger.files.finish, new)
    rows = select(inputs.c.file_id).distinct()
    assert await ledger.database.call(lambda connection: connection.execute(rows).scalars().all()) == ["file-1"]


async def test_pages_of_a_file_are_bounded_by_bytes_and_hold_at_least_a_line(ledger: Ledger) -> None:
    await ledger.database.call(ledger.files.begin, NewFile("file-2", "t", 1000.0))
    sizes = [10, PAGE_BYTES + 1, PAGE_BYTES - 5, 5, 5]
    await ledger.database.call(ledger.files.add, "file-2", 0, [b"x" * size for size in sizes])
    pages, after = [], -1
    while rows := await ledger.database.call(ledger.files.page, {"id": "file-2", "batch_id": None}, after):
        after = rows[-1][0]
        pages.append([len(data) for _, data in rows])
    assert pages == [[10], [PAGE_BYTES + 1], [PAGE_BYTES - 5, 5], [5]]


async def test_a_full_file_of_sqlite_takes_no_upload_and_still_takes_results(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/jobs.db", 16 << 20)
    store = FileStore(database, 1 << 30)
    await database.call(store.begin, NewFile("file-1", "", 1000.0))
    with pytest.raises(DatabaseFull):
        for n in range(100):
            await database.call(store.add, "file-1", n, [b"x" * (1 << 20)])
    assert n >= 10
    await database.call(store.begin, NewFile("file-2", "t", 1000.0))
    await database.call(store.drop, "file-1")
    while await database.call(store.purge):
        pass
    await database.call(store.add, "file-2", 0, [b"x" * (1 << 20)])
    database.close()


async def test_a_database_of_another_release_is_refused(url: str) -> None:
    database = Database(url)
    await database.call(lambda connection: connection.execute(update(about).values(version=99)))
    database.close()
    other = Database(url)
    with pytest.raises(Exception, match="newer release"):
        await other.call(lambda connection: None)
    other.close()


async def test_a_database_of_the_first_release_is_upgraded_and_its_batches_go_on(ledger: Ledger, url: str) -> None:
    def make_old(connection: Connection) -> None:
        for statement in (
            "DROP INDEX slipway_job_lines_by_losses",
            "DROP INDEX slipway_job_batches_by_turn",
            "ALTER TABLE slipway_job_lines DROP COLUMN losses",
            "DROP TABLE slipway_job_usage",
        ):
            connection.exec_driver_sql(statement)
        connection.execute(update(about).values(version=1))

    await ledger.database.call(make_old)
    for _ in range(2):
        opened = Database(url)
        store = LineStore(opened, "new", 10.0, 1000.0)
        assert [one.id for one in (await opened.call(store.runnable)).batches] == ["batch_1"]
        versions = await opened.call(lambda connection: connection.execute(select(about.c.version)).scalars().all())
        assert versions == [SCHEMA_VERSION]
        sizes = await opened.call(lambda connection: connection.execute(select(usage.c.bytes)).scalars().all())
        assert sizes == [LINES * (LINE_BYTES + len("id-0"))]
        # An older process that starts now writes its version too; it refuses the tables, and this one reads the newest.
        await opened.call(lambda connection: connection.execute(about.insert().values(version=1)))
        claims = await opened.call(store.claim, ledger.batch, 1)
        assert len(claims) == 1
        opened.close()


async def add_batches(ledger: Ledger, tenant: str, count: int) -> None:
    """Each with one line that waits."""

    def add(connection: Connection) -> None:
        ids = [f"batch_{tenant}_{n:04}" for n in range(count)]
        row = {"tenant": tenant, "kind": "batch", "endpoint": "/x", "input_file_id": "file-1", "status": IN_PROGRESS}
        times = {"created_at": 1.0, "expires_at": 1e12}
        connection.execute(batches.insert(), [row | times | {"id": one} for one in ids])
        connection.execute(
            lines.insert(), [{"batch_id": one, "n": 0, "custom_id": "a", "state": QUEUED} for one in ids]
        )

    await ledger.database.call(add)


async def test_a_tenant_with_many_batches_leaves_the_others_their_turn(ledger: Ledger) -> None:
    await add_batches(ledger, "a", 2 * MAX_LISTED)
    for name in ("u", "v"):
        await add_batches(ledger, name, 2)
    turn = await ledger.database.call(ledger.one.runnable)
    assert [one.id for one in turn.batches[:7]] == [
        *("batch_a_0000", "batch_1", "batch_u_0000", "batch_v_0000"),
        *("batch_a_0001", "batch_u_0001", "batch_v_0001"),
    ]
    assert len(turn.batches) < MAX_LISTED
    later = await ledger.database.call(ledger.one.runnable, "t")
    assert [one.tenant for one in later.batches[:4]] == ["u", "v", "a", "t"]


async def test_tenants_of_whom_nothing_runs_now_hide_no_other_one(ledger: Ledger) -> None:
    """More tenants than one turn looks at wait for their time: the next turns begin behind them."""
    for n in range(MAX_TENANTS + 20):
        await add_batches(ledger, f"a{n:03}", 1)
    waits = update(lines).where(lines.c.batch_id.like("batch_a%")).values(ready_at=1e12)
    await ledger.database.call(lambda connection: connection.execute(waits))
    first = await ledger.database.call(ledger.one.runnable)
    assert (first.batches, first.last) == ([], f"a{MAX_TENANTS - 1:03}")
    second = await ledger.database.call(ledger.one.runnable, first.last)
    assert [one.id for one in second.batches] == ["batch_1"]


async def test_files_of_all_tenants_are_validated_in_turn(ledger: Ledger) -> None:
    for n, tenant in enumerate(("a", "a", "b", "c")):
        await ledger.database.call(ledger.batches.create, NewBatch(f"batch_{n + 2}", tenant, "/x", "file-1"))
    found, after = [], "a"
    while validation := await ledger.database.call(ledger.batches.claim, "one", 10.0, after):
        after = validation.batch["tenant"]
        found.append((after, validation.batch["id"]))
    assert found == [("b", "batch_4"), ("c", "batch_5"), ("a", "batch_2"), ("a", "batch_3")]


async def test_batches_that_are_made_at_once_keep_to_the_limit_of_their_tenant(ledger: Ledger) -> None:
    made = await asyncio.gather(
        *(
            ledger.database.call(ledger.batches.create, NewBatch(f"batch_{n}", "t", "/x", "file-1"))
            for n in range(2, 10)
        ),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in made) == ["TooManyBatches"] * 7 + ["dict"]


async def test_results_are_kept_for_as_long_as_their_files_say(ledger: Ledger) -> None:
    await ledger.record(ledger.one, *await ledger.claim(ledger.one))
    assert await ledger.end() == COMPLETED
    await ledger.database.call(lambda connection: connection.execute(update(batches).values(created_at=1.0)))
    assert await ledger.database.call(ledger.batches.purge, 1000.0) == 0


@pytest.mark.parametrize("text", ["sqlite://", "mysql://a/b", "nonsense"])
def test_a_url_without_a_usable_database_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"name a file|scheme|write sqlite"):
        Database(text)


async def lose(ledger: Ledger, claims: list[LineClaim]) -> None:
    """The process that has them dies, and another one finds out."""
    assert claims
    await ledger.age_leases()
    await ledger.end()


async def test_lines_of_processes_that_died_twice_run_alone_and_end_after_their_attempts(ledger: Ledger) -> None:
    store, call = ledger.one, ledger.database.call
    for _ in range(ALONE_AFTER):
        assert not await call(store.has_suspect)
        await lose(ledger, await ledger.claim(store, 2))
    # The two may have ended it; they are claimed one by one, and with no other line.
    assert [one.n for one in await ledger.claim(store)] == [2, 3, 4]
    assert await call(store.has_suspect)
    [first] = await call(store.claim_suspect)
    [second] = await call(ledger.two.claim_suspect)
    assert [first.n, second.n] == [0, 1] and not await call(store.claim_suspect)
    # The second one was innocent.
    assert await ledger.record(ledger.two, second) == [True]
    for times in range(3):
        assert await call(store.fail_lost) == 0, times
        await lose(ledger, [first])
        if times < 2:
            [first] = await call(store.claim_suspect)
    # Whatever is called first: it is not sent again.
    assert not await call(store.claim_suspect)
    assert await call(store.fail_lost) == 1 and await call(store.fail_lost) == 0
    assert not await call(store.has_suspect)
    rows = await call(
        lambda connection: connection.execute(select(lines.c.state, lines.c.result).order_by(lines.c.n)).all()
    )
    # The three beside it were lost with the others while they ran in a process that was cut off: they go on.
    assert [row.state for row in rows] == [FAILED, COMPLETED, QUEUED, QUEUED, QUEUED]
    assert b'"process_lost"' in rows[0].result


async def test_a_refusal_and_a_process_that_stops_in_order_are_no_losses(ledger: Ledger) -> None:
    for _ in range(5):
        claims = await ledger.claim(ledger.one)
        waits = [LineResult(claim, QUEUED) for claim in claims[:2]]
        await ledger.database.call(ledger.one.record, waits)
        await ledger.database.call(ledger.one.give_back)
        assert len(claims) == LINES
    assert not await ledger.database.call(ledger.one.has_suspect)


async def test_the_input_of_a_job_whose_process_was_killed_before_it_was_made_goes(ledger: Ledger) -> None:
    new = NewFile("file-2", "t", 1e6, INTERNAL)
    await ledger.database.call(ledger.files.begin, new)
    await ledger.database.call(ledger.files.finish, new)
    assert await ledger.database.call(ledger.files.purge) == 0
    old = update(files).values(created_at=1.0)
    await ledger.database.call(lambda connection: connection.execute(old))
    assert await ledger.database.call(ledger.files.purge) == 1
    kept = await ledger.database.call(lambda connection: connection.execute(select(files.c.id)).scalars().all())
    assert kept == ["file-1"]


async def test_results_that_fill_the_file_of_sqlite_stop_lines_and_not_the_process(tmp_path: Path) -> None:
    """The batch waits until there is room, and ends with its window: what is in flight is still recorded."""
    database = Database(f"sqlite:///{tmp_path}/jobs.db", 16 << 20)
    made = BatchStore(database, 9, 1000.0)
    line_store = LineStore(database, "one", 10.0, 1000.0)
    count, answer = 400, b"x" * (100 << 10)
    for name, tenant, n in (("1", "", count), ("2", "t2", 1)):  # without authentication there are no shares
        await store_file(database, f"file-{name}", tenant, [b"{}\n"] * n)
        await database.call(made.create, NewBatch(f"batch_{name}", tenant, "/x", f"file-{name}"))
        validation = await database.call(made.claim, "one", 10.0)
        assert validation and await database.call(made.add_lines, validation, [(i, f"{i}") for i in range(n)], 10.0)
        assert await database.call(made.start, validation, n)
    recorded = 0
    while (turn := await database.call(line_store.runnable)).batches:
        claims = await database.call(line_store.claim, turn.batches[0], 8)
        taken = await database.call(line_store.record, [LineResult(one, COMPLETED, answer) for one in claims])
        assert all(taken)
        recorded += len(taken)
    assert 100 < recorded < count and turn.is_full
    await database.call(lambda connection: connection.execute(update(batches).values(expires_at=1.0)))
    for _ in range(2):
        for batch_id in await database.call(line_store.sweep):
            while await database.call(line_store.render, batch_id):
                pass
            assert await database.call(line_store.finish, batch_id) == EXPIRED
    shown = await database.call(made.get, "", "batch_1")
    assert shown and (shown["completed"], shown["failed"]) == (recorded - 1, count - recorded + 1), (
        "one was the other's"
    )
    await database.call(lambda connection: connection.execute(update(batches).values(expired_at=1.0)))
    while await database.call(made.purge, 1000.0):
        pass
    await database.call(made.create, NewBatch("batch_3", "t2", "/x", "file-2"))
    validation = await database.call(made.claim, "one", 10.0)
    assert validation and await database.call(made.add_lines, validation, [(0, "a")], 10.0)
    assert await database.call(made.start, validation, 1)
    turn = await database.call(line_store.runnable)
    assert turn.batches and not turn.is_full, "there is room again"
    database.close()


@pytest.mark.finding("F12")
async def test_whatever_tenants_store_in_sqlite_there_is_room_for_the_next_one(tmp_path: Path) -> None:
    """Three tenants within their own limits filled the file, and no one's line ran any more."""
    database = Database(f"sqlite:///{tmp_path}/jobs.db", 32 << 20)
    made, line_store = BatchStore(database, 9, 1000.0), LineStore(database, "one", 10.0, 1000.0)
    file_store, line, stored = FileStore(database, 1 << 30), b"x" * (100 << 10) + b"\n", []
    for tenant in ("a", "b", "c", "d"):
        new = NewFile(f"file-{tenant}", tenant, 1000.0)
        await database.call(file_store.begin, new)
        count = 0
        with contextlib.suppress(DatabaseFull):
            for count in range(10_000):
                await database.call(file_store.add, new.id, count, [line])
        stored.append(count)
        await database.call(file_store.finish, new)
    assert stored == sorted(stored, reverse=True) and stored[0] > 80 and stored[-1] > 2, stored
    ran = []
    for tenant in ("a", "b", "c", "d"):
        await database.call(made.create, NewBatch(f"batch_{tenant}", tenant, "/x", f"file-{tenant}"))
        validation = await database.call(made.claim, "one", 10.0)
        assert validation and await database.call(made.add_lines, validation, [(i, f"{i}") for i in range(400)], 10.0)
        assert await database.call(made.start, validation, 400)
        ran.append(0)
        while batches_of := (await database.call(line_store.runnable)).batches:
            claims = await database.call(line_store.claim, batches_of[0], 1)
            await database.call(line_store.record, [LineResult(one, COMPLETED, line) for one in claims])
            ran[-1] += 1
    assert ran == sorted(ran, reverse=True) and ran[-1] > 1, ran
    database.close()
