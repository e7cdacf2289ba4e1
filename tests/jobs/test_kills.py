"""Jobs processes that are killed, stopped or paused lose no line and record none twice."""

import random
import signal
from pathlib import Path

import pytest

from testkit.until import until_async
from tests.gateway import tenants
from tests.jobs.world import KEY_A, World, chat, create, ended, jsonl, result, world
from tests.support.postgres import Postgres

pytestmark = pytest.mark.integration


async def check(here: World, batch_id: str, lines: int, at_most: int) -> None:
    """All lines have one answer, in order; the model got some twice, by as many as were in flight at a kill."""
    batch = await ended(here.client, batch_id)
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", lines, lines, 0)
    assert batch.error_file_id is None
    output = await result(here.client, batch.output_file_id)
    assert [one["custom_id"] for one in output] == [f"line-{n}" for n in range(lines)]
    answers = [one["response"]["body"]["choices"][0]["message"]["content"] for one in output]
    assert answers == [f"re: prompt {n}" for n in range(lines)]
    assert set(here.model.answers) == {f"prompt {n}" for n in range(lines)}
    assert sum(here.model.answers.values()) <= lines + at_most


async def kill(here: World, kills: int, seed: int, number: int = signal.SIGKILL) -> None:
    """So many times: a process ends while it works, and starts again."""
    chance = random.Random(seed)
    for _ in range(kills):
        before = here.model.answers.total()
        more = before + chance.randint(1, 40)
        await until_async(
            lambda more=more: here.model.answers.total() >= more or not here.model.waiting, "some answers"
        )
        one = chance.choice(here.jobs)
        await one.end(number)
        await one.start()


async def test_killed_in_the_middle_nothing_is_lost_or_recorded_twice(url: str, keys_file: str, tmp_path: Path) -> None:
    async with world(url, keys_file, tmp_path, max_concurrency=8) as here:
        here.model.pause_s = 0.02
        made = await create(here.client, jsonl(*(chat(n) for n in range(300))))
        await kill(here, 3, seed=1)
        await check(here, made.id, 300, at_most=3 * 8)


async def test_two_processes_share_a_batch_while_they_are_killed(
    server: Postgres, keys_file: str, tmp_path: Path
) -> None:
    async with world(server.url, keys_file, tmp_path, processes=2, max_concurrency=8) as here:
        here.model.pause_s = 0.02
        made = await create(here.client, jsonl(*(chat(n) for n in range(300))))
        await kill(here, 3, seed=2)
        await check(here, made.id, 300, at_most=3 * 8)


async def test_a_process_that_is_stopped_finishes_what_is_in_flight_and_gives_the_rest_back(
    url: str, keys_file: str, tmp_path: Path
) -> None:
    async with world(url, keys_file, tmp_path, lease=60) as here:
        here.model.pause_s = 0.05
        made = await create(here.client, jsonl(*(chat(n) for n in range(60))))
        await until_async(lambda: here.model.waiting, "a line is at the model")
        assert await here.jobs[0].end(signal.SIGTERM) == 0
        assert not here.model.waiting
        await here.jobs[0].start()
        # Within the lease: nothing waited for it, and nothing was sent twice.
        await check(here, made.id, 60, at_most=0)


async def test_the_result_of_a_process_whose_claim_another_one_took_is_not_recorded(
    server: Postgres, keys_file: str, tmp_path: Path
) -> None:
    """It is paused for longer than its lease while its line is at the model, and goes on when the other is done."""
    # One tenant leaves the last quarter of three places to others.
    async with world(server.url, keys_file, tmp_path, processes=2, max_concurrency=3) as here:
        here.model.open.clear()
        made = await create(here.client, jsonl(*(chat(n) for n in range(4))))
        await until_async(lambda: here.model.waiting >= 4, "both processes have lines at the model")
        zombie = here.jobs[1].process
        assert zombie
        zombie.send_signal(signal.SIGSTOP)
        here.model.open.set()
        await check(here, made.id, 4, at_most=2)
        zombie.send_signal(signal.SIGCONT)
        async with here.edge.client.get(f"{here.jobs[1].admin_url}/metrics") as response:
            assert response.status == 200
        page = await until_async(
            lambda: _page(here), "the late results are counted", holds=lambda text: "superseded" in text
        )
        assert 'slipway_jobs_lines_total{result="superseded"} 2.0' in page
        await check(here, made.id, 4, at_most=2)


async def _page(here: World) -> str:
    async with here.edge.client.get(f"{here.jobs[1].admin_url}/metrics") as response:
        return await response.text()


async def test_a_line_that_kills_the_process_ends_and_the_lines_beside_it_do_not(
    keys_file: str, tmp_path: Path
) -> None:
    async with world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path, max_attempts=1) as here:
        jobs = here.jobs[0]
        killed = 0

        def die() -> None:
            nonlocal killed
            killed += 1
            assert jobs.process
            jobs.process.kill()
            here.model.open.clear()  # until it runs again

        here.model.comes = {"prompt 3": die}
        made = await create(here.client, jsonl(*(chat(n) for n in range(12))))
        # Twice beside others, and once alone.
        for times in range(1, 4):
            await until_async(lambda times=times: killed >= times, "the line was sent")
            await jobs.end()
            await jobs.start()
            here.model.open.set()
        batch = await ended(here.client, made.id)
        counts = batch.request_counts
        assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 12, 11, 1)
        [failed] = await result(here.client, batch.error_file_id)
        assert (failed["custom_id"], failed["error"]["code"], killed) == ("line-3", "process_lost", 3)
        assert [one["custom_id"] for one in await result(here.client, batch.output_file_id)] == [
            f"line-{n}" for n in range(12) if n != 3
        ]


@pytest.mark.extended
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lines", [50_000])
async def test_fifty_thousand_lines_survive_twenty_kills(
    server: Postgres, keys_file: str, tmp_path: Path, lines: int
) -> None:
    async with world(server.url, keys_file, tmp_path, processes=2, max_concurrency=32, lease=10) as here:
        made = await create(here.client, jsonl(*(chat(n) for n in range(lines))))
        await until_async(lambda: here.model.answers.total() > 100, "it has begun")
        await kill(here, 20, seed=3)
        await until_async(
            lambda: here.client.batches.retrieve(made.id), "it ends", 1700, holds=lambda one: one.status == "completed"
        )
        await check(here, made.id, lines, at_most=20 * 32)


async def test_a_database_that_is_away_for_a_while_costs_nothing_but_time(
    server: Postgres, keys_file: str, tmp_path: Path
) -> None:
    async with world(server.url, keys_file, tmp_path, max_concurrency=8) as here:
        here.model.pause_s = 0.02
        made = await create(here.client, jsonl(*(chat(n) for n in range(150))))
        await until_async(lambda: here.model.answers.total() > 20, "some answers")
        server.stop()
        try:
            await until_async(lambda: _readyz(here), "it is not ready", holds=lambda status: status == 503)
            answer = await here.edge.client.get(f"{here.edge.url}/v1/files", headers=tenants.bearer(KEY_A))
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        finally:
            server.start()
        await check(here, made.id, 150, at_most=8)
        assert await until_async(lambda: _readyz(here), "it is ready", holds=lambda status: status == 200)


async def _readyz(here: World) -> int:
    async with here.edge.client.get(f"{here.jobs[0].admin_url}/readyz") as response:
        return response.status
