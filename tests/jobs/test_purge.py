"""What is past its retention goes, however much of it is made: by slices, none of which holds up others for long."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import func, select, update

from slipway_contracts.passes import PassKeys
from slipway_jobs.dispatch.dispatcher import Dispatcher
from slipway_jobs.dispatch.gateway_calls import open_calls
from slipway_jobs.dispatch.validation import Validator
from slipway_jobs.settings import JobsSettings
from slipway_jobs.states import COMPLETED, JOB
from slipway_jobs.store.batch_store import BatchStore, NewBatch
from slipway_jobs.store.database import Database
from slipway_jobs.store.file_store import INTERNAL, FileStore, NewFile
from slipway_jobs.store.line_store import LineStore
from slipway_jobs.store.tables import batches, files, inputs, lines
from slipway_jobs.telemetry import JobsMetrics
from testkit.until import until_async

JOBS = 150


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    opened = Database(url)
    yield opened
    opened.close()


async def ended_jobs(database: Database, count: int) -> None:
    """Jobs of one request, which ended long ago."""
    store, made = FileStore(database, 1 << 30), BatchStore(database, count, 1000.0)
    for n in range(count):
        new = NewFile(f"file-{n}", "t", 1000.0, INTERNAL)
        await database.call(store.begin, new)
        await database.call(store.add, new.id, 0, [b"{}\n"])
        await database.call(store.finish, new)
        await database.call(made.create, NewBatch(f"job_{n}", "t", "/x", new.id, JOB))
        validation = await database.call(made.claim, "one", 10.0)
        assert validation and await database.call(made.add_lines, validation, [(0, "job")], 10.0)
        assert await database.call(made.start, validation, 1)
    await database.call(
        lambda connection: connection.execute(update(batches).values(status=COMPLETED, completed_at=1.0))
    )


async def left(database: Database) -> list[int]:
    """Numbers of rows."""
    return await database.call(
        lambda connection: [
            connection.execute(select(func.count()).select_from(one)).scalar_one()
            for one in (files, inputs, batches, lines)
        ]
    )


async def test_many_small_jobs_go_in_few_slices(database: Database) -> None:
    """With a slice or two for each, a process that makes one a second would never be done."""
    await ended_jobs(database, JOBS)
    assert await left(database) == [JOBS] * 4
    store, made = FileStore(database, 1 << 30), BatchStore(database, 1, 1000.0)
    for _ in range(3):
        await database.call(store.purge)
        await database.call(made.purge, 1000.0)
    assert await left(database) == [0] * 4


async def test_a_purge_that_is_not_done_goes_on_at_once_beside_other_work(database: Database, keys_file: str) -> None:
    slices = 0

    async def purge() -> int:
        nonlocal slices
        slices += 1
        return int(slices < 100)

    given = ("--gateway-url", "http://127.0.0.1:9", "--keys-file", keys_file, "--database-url", "sqlite:////none")
    settings = JobsSettings.parse(given)
    store, made = FileStore(database, 1 << 30), BatchStore(database, 1, 1000.0)
    async with open_calls(settings, PassKeys(keys_file)) as calls:
        validator = Validator(settings, database, store, made, "one")
        line_store = LineStore(database, "one", 10.0, 1000.0)
        running = asyncio.create_task(
            Dispatcher(settings, database, line_store, calls, validator, JobsMetrics(), purge=purge).run()
        )
        try:
            await until_async(lambda: slices >= 100, "all slices are deleted", 50)
        finally:
            running.cancel()
            await asyncio.wait({running})
