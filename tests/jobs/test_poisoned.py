"""One poisoned record of the jobs process stops no other: results, ends of batches, webhooks, and its tasks."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from devcluster.ports import reserve_port
from slipway_contracts.passes import PassKeys
from slipway_jobs import __main__ as program
from slipway_jobs.dispatch.dispatcher import Dispatcher
from slipway_jobs.dispatch.gateway_calls import GatewayCalls, open_calls
from slipway_jobs.dispatch.validation import Validator
from slipway_jobs.settings import JobsSettings
from slipway_jobs.states import COMPLETED, FAILED
from slipway_jobs.store.database import Database
from slipway_jobs.store.line_store import LineClaim, LineResult, result_line
from slipway_jobs.store.tables import lines
from slipway_jobs.telemetry import JobsMetrics
from slipway_jobs.webhooks.deliverer import Deliverer
from slipway_process.sealing import Keyring
from slipway_process.supervisor import OnFailure
from testkit.until import until_async
from tests.jobs.test_store import LINES, Ledger, ledger  # noqa: F401
from tests.support.tasks import Started, fail, page_of, reasons

pytestmark = [pytest.mark.finding("F4"), pytest.mark.timeout(120)]


def settings(keys_file: str, **changes: Any) -> JobsSettings:
    given = {"gateway-url": "http://127.0.0.1:9", "keys-file": keys_file, "database-url": "sqlite:////none"} | changes
    return JobsSettings.parse([f"--{name}={value}" for name, value in given.items()])


@contextlib.asynccontextmanager
async def dispatcher(one: Ledger, keys_file: str) -> AsyncIterator[tuple[Dispatcher, GatewayCalls]]:
    async def purge() -> int:
        return 0

    set_ = settings(keys_file)
    async with open_calls(set_, PassKeys(keys_file)) as calls:
        validator = Validator(set_, one.database, one.files, one.batches, "one")
        yield Dispatcher(set_, one.database, one.one, calls, validator, JobsMetrics(), purge=purge), calls


async def results(database: Database) -> dict[int, tuple[str, bytes]]:
    def read(connection: Connection) -> dict[int, tuple[str, bytes]]:
        return {row.n: (row.state, row.result) for row in connection.execute(select(lines)).all()}

    return await database.call(read)


async def test_a_result_that_cannot_be_stored_fails_its_line_alone(
    ledger: Ledger,  # noqa: F811
    keys_file: str,
) -> None:
    """Its error ended the process with all lines in flight, or was retried for ever before all later results."""
    async with dispatcher(ledger, keys_file) as (made, _):
        claims = await ledger.claim(ledger.one)
        found = [LineResult(one, COMPLETED, result_line(one.batch.id, one.n, one.custom_id, {})) for one in claims]
        found[2] = replace(found[2], attempts=1 << 70)  # no column holds it
        made._results += found
        await made._record()
        assert [one.claim.n for one in made._results] == [2]
        await made._record()
        assert made._results == []
        stored = await results(ledger.database)
        assert {n: state for n, (state, _) in stored.items()} == dict.fromkeys(range(LINES), COMPLETED) | {2: FAILED}
        assert b"cannot be stored" in stored[2][1]
        assert await ledger.end() == COMPLETED


async def test_a_line_at_which_the_process_fails_ends_with_an_error(
    ledger: Ledger,  # noqa: F811
    keys_file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing was recorded: it was sent again after each lease, as if the process had ended."""

    async def send(calls: GatewayCalls, claim: LineClaim) -> Any:
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "a bug")

    monkeypatch.setattr(GatewayCalls, "send", send)
    async with dispatcher(ledger, keys_file) as (made, _):
        [claim] = await ledger.claim(ledger.one, 1)
        await made._begin(claim, made._window("t"))
        await made._record()
        state, line = (await results(ledger.database))[claim.n]
        assert (state, b"internal_error" in line) == (FAILED, True)


async def test_a_batch_that_cannot_be_read_or_ended_stops_no_other(
    ledger: Ledger,  # noqa: F811
    keys_file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []

    def sweep(_: Connection) -> Sequence[str]:
        return ["batch_bad", ledger.batch.id]

    real: Callable[..., Any] = ledger.one.render

    def render(connection: Connection, batch_id: str) -> bool:
        if batch_id == "batch_bad":
            raise OverflowError("a bug")
        ended.append(batch_id)
        return bool(real(connection, batch_id))

    monkeypatch.setattr(ledger.one, "sweep", sweep)
    monkeypatch.setattr(ledger.one, "render", render)
    async with dispatcher(ledger, keys_file) as (made, _):
        await made._end_batches()
        assert ended == [ledger.batch.id]
        monkeypatch.setattr(made._validator, "next", lambda: _raises(RecursionError()))
        made._validate(starts=True)
        made._validating = asyncio.create_task(_raises(RecursionError()))
        await asyncio.wait({made._validating})
        made._validate(starts=True)  # it raises nothing
        assert made._validating is None


async def _raises(error: Exception) -> bool:
    raise error


LOOPS: dict[str, tuple[type, str]] = {"dispatcher": (Dispatcher, "_turn"), "webhooks": (Deliverer, "turn")}


@contextlib.asynccontextmanager
async def process(
    tmp_path: Path, keys_file: str, monkeypatch: pytest.MonkeyPatch, port: int = 0, admin_port: int = 0
) -> AsyncIterator[tuple[Started, "asyncio.Task[int]"]]:
    url = f"sqlite:///{tmp_path}/jobs.db"
    ports = {"host": "127.0.0.1", "admin-host": "127.0.0.1", "port": port or reserve_port()}
    ports |= {"admin-port": admin_port or reserve_port()}
    Started.replace(monkeypatch, program)
    running = asyncio.create_task(
        program.run(settings(keys_file, **{"database-url": url}, **ports), Database(url), [b"s" * 32], Keyring(""))
    )
    try:
        await until_async(lambda: running.done() or (Started.made and Started.made[0].tasks))
        assert not running.done(), await running
        yield Started.made[0], running
    finally:
        if not running.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 60)


async def test_each_task_of_the_process_is_in_the_table(
    tmp_path: Path, keys_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with process(tmp_path, keys_file, monkeypatch) as (tasks, _):
        assert set(tasks.tasks) == set(LOOPS)


@pytest.mark.parametrize("name", LOOPS)
async def test_a_task_that_ends_is_at_work_again(
    name: str, tmp_path: Path, keys_file: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls, ports = fail(monkeypatch, *LOOPS[name]), (reserve_port(), reserve_port())
    async with process(tmp_path, keys_file, monkeypatch, *ports) as (tasks, running):
        await until_async(lambda: "worked" in calls, within_s=60)
        assert tasks.restarts == [name] and reasons(caplog) == {name}
        assert not running.done()
        _, page = await page_of(ports[1], "/metrics")
        assert f'slipway_task_restarts_total{{task="{name}"}} 1.0' in page
        # Requests go on, to the refusal of one that no gateway has signed.
        assert (await page_of(ports[0], "/v1/files"))[0] == 401


@pytest.mark.parametrize("name", LOOPS)
async def test_where_that_does_not_help_the_process_says_so(
    name: str, tmp_path: Path, keys_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, *LOOPS[name], 10**9)
    async with process(tmp_path, keys_file, monkeypatch) as (tasks, running):
        kind = tasks.tasks[name]
        await until_async(lambda: tasks.trouble, within_s=60)
        assert name in tasks.trouble
        if kind is OnFailure.EXIT:
            assert await asyncio.wait_for(running, 60) == 1
