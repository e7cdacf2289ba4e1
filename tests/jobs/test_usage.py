"""What the batches and results of a tenant take of the database is bounded, and is counted down when it is deleted."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, select, update

from slipway_jobs.dispatch.validation import Validator
from slipway_jobs.settings import JobsSettings
from slipway_jobs.states import CANCELLED, COMPLETED, FAILED
from slipway_jobs.store.batch_store import BatchStore, NewBatch
from slipway_jobs.store.database import Database
from slipway_jobs.store.file_store import FileStore
from slipway_jobs.store.line_store import LineResult, LineStore
from slipway_jobs.store.tables import batches, lines, usage
from slipway_jobs.store.usage import TooMuchKept
from testkit.until import until_async
from tests.gateway import tenants
from tests.jobs.world import KEY_A, World, chat, create, jsonl, seen, store_file, world

LIMIT = 20_000
RESULT = b"r" * 4000
WHEN_ENDED = 1.0  # long ago


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    opened = Database(url)
    yield opened
    opened.close()


class Store:
    """The stores of one process, with a small limit."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.batches = BatchStore(database, 100, 1000.0, max_tenant_result_bytes=LIMIT)
        self.files = FileStore(database, 1 << 30)
        self.lines = LineStore(database, "one", 10.0, 1000.0, max_tenant_result_bytes=LIMIT)

    async def batch(self, name: str, count: int, tenant: str = "t") -> None:
        """A batch in progress."""
        await store_file(self.database, f"file-{name}", tenant)
        await self.database.call(self.batches.create, NewBatch(name, tenant, "/x", f"file-{name}"))
        validation = await self.database.call(self.batches.claim, "one", 10.0)
        assert validation
        rows = [(n, f"id-{n}") for n in range(count)]
        assert await self.database.call(self.batches.add_lines, validation, rows, 10.0)
        assert await self.database.call(self.batches.start, validation, count)

    async def run(self) -> int:
        """Runs lines as long as there are any; returns how many."""
        done = 0
        while found := (await self.database.call(self.lines.runnable)).batches:
            [claim] = await self.database.call(self.lines.claim, found[0], 1)
            state = FAILED if claim.n % 2 else COMPLETED
            await self.database.call(self.lines.record, [LineResult(claim, state, RESULT)])
            done += 1
        return done

    async def end(self) -> None:
        for batch_id in await self.database.call(self.lines.sweep):
            while await self.database.call(self.lines.render, batch_id):
                pass
            await self.database.call(self.lines.finish, batch_id)

    async def purge(self) -> None:
        while await self.database.call(self.files.purge) + await self.database.call(self.batches.purge, 1000.0):
            pass

    async def bytes(self, tenant: str = "t") -> int:
        query = select(usage.c.bytes).where(usage.c.tenant == tenant)
        return await self.database.call(lambda connection: connection.execute(query).scalar()) or 0

    async def age(self) -> None:
        def age(connection: Connection) -> None:
            connection.execute(update(batches).values(completed_at=WHEN_ENDED, failed_at=WHEN_ENDED))

        await self.database.call(age)


async def test_a_tenant_at_its_limit_gets_no_more_results_and_others_do(database: Database) -> None:
    store = Store(database)
    await store.batch("batch_1", 10)
    await store.batch("batch_2", 2, "other")
    ran = await store.run()
    assert ran == 5 + 2, "of ten lines those that fit ran"
    assert LIMIT <= await store.bytes() < LIMIT + len(RESULT)
    await store_file(database, "file-3")
    with pytest.raises(TooMuchKept):
        await database.call(store.batches.create, NewBatch("batch_3", "t", "/x", "file-3"))
    await store.batch("batch_4", 1, "other")


async def test_results_of_a_deleted_file_make_room_for_lines_that_wait(database: Database) -> None:
    store = Store(database)
    await store.batch("batch_1", 4)
    assert await store.run() == 4
    await store.end()
    before = await store.bytes()
    await store.batch("batch_2", 4)
    assert await store.run() < 4
    [row] = [
        one for one in await database.call(store.files.listed, "t", 10) if one["filename"] == "batch_1_output.jsonl"
    ]
    assert await database.call(store.files.delete, "t", row["id"])
    await store.purge()
    assert await store.run() > 0
    left = select(func.count()).where(lines.c.batch_id == "batch_1", lines.c.result.is_not(None))
    assert await database.call(lambda connection: connection.execute(left).scalar_one()) == 2, "its errors stay"
    shown = await database.call(store.batches.get, "t", "batch_1")
    assert shown and shown["counts"].completed == 2 and before > 2 * len(RESULT)


@pytest.mark.parametrize("end", ["completed", "cancelled", "invalid"])
async def test_what_is_purged_is_no_longer_counted(database: Database, end: str) -> None:
    store = Store(database)
    await store_file(database, "file-a")
    if end == "invalid":
        await database.call(store.batches.create, NewBatch("batch_1", "t", "/x", "file-a", metadata="{}"))
        validation = await database.call(store.batches.claim, "one", 10.0)
        assert validation
        await database.call(store.batches.add_lines, validation, [(0, "a")], 10.0)
        assert await database.call(store.batches.fail, validation, [{"code": "no"}] * 9)
    else:
        await store.batch("batch_1", 3)
        if end == "cancelled":
            await database.call(store.batches.cancel, "t", "batch_1")
        else:
            await store.run()
        await store.end()
        shown = await database.call(store.batches.get, "t", "batch_1")
        assert shown and shown["status"] == (CANCELLED if end == "cancelled" else COMPLETED)
    assert await store.bytes() > 0
    await database.call(lambda connection: connection.execute(update(batches).values(cancelled_at=WHEN_ENDED)))
    await store.age()
    await store.purge()
    assert await store.bytes() == 0


async def test_a_file_is_not_validated_into_more_rows_than_fit(database: Database, keys_file: str) -> None:
    store = Store(database)
    line = b'{"custom_id": "%d", "method": "POST", "url": "/classify", "body": {"model": "m"}}\n'
    await store_file(database, "file-a", data=[line % n for n in range(300)])
    for n in range(3):
        await database.call(store.batches.create, NewBatch(f"batch_{n}", "t", "/classify", "file-a"))
    given = ("--gateway-url", "http://127.0.0.1:9", "--keys-file", keys_file, "--database-url", "sqlite:////none")
    validator = Validator(JobsSettings.parse(given), database, store.files, store.batches, "one")
    while await validator.next():
        pass
    shown = [await database.call(store.batches.get, "t", f"batch_{n}") for n in range(3)]
    assert {str(one["status"]) for one in shown if one} == {FAILED}
    assert all(one and "storage_exhausted" in one["errors"] for one in shown)
    assert await store.bytes() < LIMIT


@pytest.fixture
async def here(url: str, keys_file: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world(url, keys_file, tmp_path, max_tenant_result_bytes=6000) as made:
        yield made


async def test_the_api_refuses_batches_and_jobs_by_the_name_of_the_limit(here: World) -> None:
    batch = await create(here.client, jsonl(*(chat(n) for n in range(12))))
    await until_async(
        lambda: here.client.batches.retrieve(batch.id), "lines wait", holds=lambda one: one.request_counts.completed > 0
    )
    job = {"endpoint": "/v1/chat/completions", "body": chat(0)["body"]}

    async def refused() -> int:
        response = await here.edge.client.post(f"{here.edge.url}/v1/jobs", json=job, headers=tenants.bearer(KEY_A))
        shown = await response.json()
        if response.status != 202:
            assert (shown["error"]["code"], "6000 bytes" in shown["error"]["message"]) == ("storage_exhausted", True)
        return response.status

    await until_async(refused, "the tenant is at its limit", holds=lambda status: status == 413)


async def test_a_job_whose_result_was_deleted_says_so(here: World, database: Database) -> None:
    headers, url = tenants.bearer(KEY_A), f"{here.edge.url}/v1/jobs"
    job = {"endpoint": "/v1/chat/completions", "body": chat(0)["body"]}
    job_id = (await (await here.edge.client.post(url, json=job, headers=headers)).json())["job_id"]
    shown = await seen(here, f"/v1/jobs/{job_id}", "completed")
    assert shown["result"] and shown["error"] is None
    [file] = (await here.client.files.list()).data
    await here.client.files.delete(file.id)
    await Store(database).purge()
    shown = await seen(here, f"/v1/jobs/{job_id}", "completed")
    assert (shown["result"], shown["error"]["code"]) == (None, "result_deleted")
