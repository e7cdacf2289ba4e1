"""`slipway batches` and `slipway jobs` against a gateway and a jobs process."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from devcluster.ports import reserve_port
from slipway_cli.commands.root import cli
from slipway_cli.errors import CommandError, ObjectNotFound, Rejected, TimedOut, Unreachable
from tests.jobs.world import KEY_A, World, chat, jsonl, world

pytestmark = pytest.mark.integration


def part_of(results: Path) -> Path:
    return results.with_name(results.name + ".part")


async def run(here: World, *arguments: str, key: str = KEY_A, url: str = "") -> Result:
    environment = {"SLIPWAY_URL": url or f"{here.edge.url}/v1", "SLIPWAY_API_KEY": key}
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments, env=environment)


async def test_a_batch_is_submitted_watched_and_downloaded(keys_file: str, tmp_path: Path) -> None:
    source, results = tmp_path / "requests é.jsonl", tmp_path / "results.jsonl"
    source.write_bytes(jsonl(*(chat(n) for n in range(12))))
    async with world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path) as here:
        here.model.statuses = {"prompt 5": [400]}
        made = await run(here, "batches", "submit", str(source), "--watch")
        assert made.exit_code == 0, made.output
        batch_id = made.stdout.strip()
        assert f"{batch_id} completed: 11 completed, 1 failed, 12 in all" in made.stderr
        listed = await run(here, "batches", "list")
        assert listed.stdout.splitlines()[1].split()[:5] == [batch_id, "completed", "11", "1", "12"]
        assert (await run(here, "batches", "download", batch_id, "--to", str(results))).exit_code == 0
        assert len(results.read_text().splitlines()) == 11
        assert not part_of(results).exists()
        failed = await run(here, "batches", "download", batch_id, "--errors")
        assert json.loads(failed.stdout)["custom_id"] == "line-5"
        shown = json.loads((await run(here, "batches", "get", batch_id, "-o", "json")).stdout)
        assert shown["id"] == batch_id

        job = await run(here, "jobs", "submit", json.dumps(chat(1)["body"]))
        watched = await run(here, "jobs", "watch", job.stdout.strip())
        assert watched.exit_code == 0
        assert json.loads(watched.stdout)["result"]["choices"][0]["message"]["content"] == "re: prompt 1"


async def test_what_goes_wrong_ends_with_its_reason_and_exit_code(keys_file: str, tmp_path: Path) -> None:
    source = tmp_path / "requests.jsonl"
    source.write_bytes(b"no json\n")
    async with world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path) as here:
        invalid = await run(here, "batches", "submit", str(source), "--watch")
        assert isinstance(invalid.exception, Rejected) and "line 1: This line is no JSON" in str(invalid.exception)
        here.model.open.clear()
        source.write_bytes(jsonl(chat(1)))
        made = (await run(here, "batches", "submit", str(source))).stdout.strip()
        waits = await run(here, "batches", "watch", made, "--timeout", "1s")
        assert isinstance(waits.exception, TimedOut)
        assert "cancelling" in (await run(here, "batches", "cancel", made)).stdout
        empty = await run(here, "batches", "download", made)
        assert isinstance(empty.exception, CommandError) and "there are no results" in str(empty.exception)
        here.model.open.set()
        missing = await run(here, "batches", "get", "batch_/../x?")
        assert isinstance(missing.exception, ObjectNotFound)
        refused = await run(here, "batches", "list", key="sk-wrong")
        assert isinstance(refused.exception, CommandError) and "SLIPWAY_API_KEY" in str(refused.exception)
        away = await run(here, "batches", "list", url=f"http://127.0.0.1:{reserve_port()}")
        assert isinstance(away.exception, Unreachable)
        assert (await run(here, "batches", "list", url="gateway")).exit_code != 0
        assert (await run(here, "jobs", "submit", "{")).exit_code == 2
