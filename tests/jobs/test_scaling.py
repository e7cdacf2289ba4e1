"""What a jobs process reports for an autoscaler, and how it leaves when there are fewer replicas."""

import asyncio
import contextlib
import math
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipway_contracts.passes import PassKeys
from slipway_jobs.dispatch.dispatcher import Dispatcher
from slipway_jobs.dispatch.gateway_calls import GatewayCalls, open_calls
from slipway_jobs.dispatch.validation import Validator
from slipway_jobs.store.line_store import LineClaim
from slipway_jobs.telemetry import JobsMetrics
from testkit.until import until_async
from tests.gateway import tenants
from tests.jobs.test_poisoned import settings
from tests.jobs.test_store import LINES, Ledger, ledger  # noqa: F401
from tests.jobs.world import KEY_A, World, chat, create, ended, jsonl, world
from tests.support.postgres import Postgres


@contextlib.asynccontextmanager
async def busy(
    one: Ledger, keys_file: str, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> AsyncIterator[tuple[Dispatcher, JobsMetrics]]:
    """A dispatcher whose calls do not end."""

    async def send(calls: GatewayCalls, claim: LineClaim) -> Any:
        await asyncio.Event().wait()

    async def purge() -> int:
        return 0

    monkeypatch.setattr(GatewayCalls, "send", send)
    set_, metrics = settings(keys_file, **changes), JobsMetrics()
    async with open_calls(set_, PassKeys(keys_file)) as calls:
        validator = Validator(set_, one.database, one.files, one.batches, "one")
        made = Dispatcher(set_, one.database, one.one, calls, validator, metrics, purge=purge)
        try:
            yield made, metrics
        finally:
            await made.close()


def reported(metrics: JobsMetrics) -> tuple[float, float, float]:
    names = ("slipway_jobs_in_flight", "slipway_jobs_waiting", "slipway_jobs_short_of_places")
    in_flight, waiting, short = (metrics.registry.get_sample_value(name) for name in names)
    assert in_flight is not None and waiting is not None and short is not None
    return in_flight, waiting, short


async def test_lines_that_wait_for_a_place_are_reported(
    ledger: Ledger,  # noqa: F811
    keys_file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with busy(ledger, keys_file, monkeypatch, **{"max-concurrency": 2}) as (dispatcher, metrics):
        assert math.isnan(reported(metrics)[2]), "before the first count it is no number, and not 0"
        assert await dispatcher._claim()
        await dispatcher._count_waiting()
        # Of two places one is for other tenants.
        assert reported(metrics) == (1, LINES - 1, LINES - 1)
        await dispatcher._claim()
        await dispatcher._count_waiting()
        assert reported(metrics) == (1, LINES - 1, LINES - 1), "nothing has changed"


async def test_lines_that_wait_for_the_window_of_their_tenant_need_no_further_process(
    ledger: Ledger,  # noqa: F811
    keys_file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with busy(ledger, keys_file, monkeypatch, **{"max-concurrency": 32}) as (dispatcher, metrics):
        assert await dispatcher._claim()
        await dispatcher._count_waiting()
        assert reported(metrics) == (4, LINES - 4, 0)


async def test_without_lines_nothing_is_short(
    ledger: Ledger,  # noqa: F811
    keys_file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await ledger.record(ledger.two, *await ledger.claim(ledger.two))
    async with busy(ledger, keys_file, monkeypatch, **{"max-concurrency": 2}) as (dispatcher, metrics):
        assert not await dispatcher._claim()
        await dispatcher._count_waiting()
        assert reported(metrics) == (0, 0, 0)


async def status(here: World, url: str) -> int:
    async with here.edge.client.get(url, headers=tenants.bearer(KEY_A)) as answer:
        return answer.status


@pytest.mark.integration
async def test_a_process_that_leaves_is_unready_at_once_and_serves_until_gateways_have_noticed(
    keys_file: str, tmp_path: Path
) -> None:
    async with world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path, drain_delay=3) as here:
        [jobs] = here.jobs
        here.model.open.clear()
        made = await create(here.client, jsonl(*(chat(n) for n in range(12))))
        in_flight = await until_async(lambda: here.model.waiting, "a line is at the model")
        assert jobs.process
        jobs.process.send_signal(signal.SIGTERM)

        async def is_unready() -> bool:
            return await status(here, f"{jobs.admin_url}/readyz") == 503

        await until_async(is_unready, "it is unready")
        assert (await here.client.batches.retrieve(made.id)).status == "in_progress"
        late = await create(here.client, jsonl(chat(99)))
        assert here.model.waiting >= in_flight
        here.model.open.set()
        assert await jobs.end(signal.SIGTERM) == 0
        assert not here.model.waiting
        with pytest.raises(aiohttp.ClientConnectorError):
            await status(here, f"http://127.0.0.1:{jobs.settings['port']}/v1/files")
        await jobs.start()
        for batch_id, lines in ((made.id, 12), (late.id, 1)):
            batch = await ended(here.client, batch_id)
            assert (batch.status, batch.request_counts.completed) == ("completed", lines)
        assert set(here.model.answers.values()) == {1}, "no line was sent twice"


@pytest.mark.integration
async def test_no_line_and_no_call_is_lost_when_a_replica_leaves(
    server: Postgres, keys_file: str, tmp_path: Path
) -> None:
    """As an autoscaler removes one of two: the other one takes what it has not begun."""
    async with world(server.url, keys_file, tmp_path, processes=2, lease=60, drain_delay=1) as here:
        here.model.pause_s = 0.02
        made = await create(here.client, jsonl(*(chat(n) for n in range(80))))
        await until_async(lambda: here.model.waiting, "a line is at the model")
        # The gateway knows the first one alone, so the second one leaves; its clients are lines.
        assert await here.jobs[1].end(signal.SIGTERM) == 0
        batch = await ended(here.client, made.id)
        assert (batch.status, batch.request_counts.completed) == ("completed", 80)
        assert set(here.model.answers.values()) == {1}
