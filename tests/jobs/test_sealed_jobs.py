"""Lines of files and results are encrypted in the database where there are keys, and a lost key is an error by name."""

from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import create_engine, text

from slipway_process.database_urls import parse_url
from testkit.until import until_async
from tests.jobs.world import World, chat, create, ended, jsonl, result, world
from tests.process.test_sealing import keys_file as sealing_keys

pytestmark = pytest.mark.integration


def stored(url: str) -> bytes:
    """All contents of jobs in the database."""
    engine = create_engine(parse_url(url))
    with engine.connect() as connection:
        columns = (("slipway_job_inputs", "data"), ("slipway_job_lines", "result"))
        found = [row[0] for table, name in columns for row in connection.execute(text(f"SELECT {name} FROM {table}"))]
    engine.dispose()
    return b"\n".join(bytes(one) for one in found if one is not None)


async def restart(here: World, **changes: Any) -> None:
    [jobs] = here.jobs
    await jobs.end()
    for name, value in changes.items():
        jobs.settings[name.replace("_", "-")] = value
    await jobs.start()


async def test_contents_of_jobs_are_encrypted_and_older_ones_stay_readable(
    url: str, keys_file: str, tmp_path: Path
) -> None:
    async with world(url, keys_file, tmp_path) as here:
        plain = await ended(here.client, (await create(here.client, jsonl(chat(0, "a plain word")))).id)
        assert b"a plain word" in stored(url)
        keys = sealing_keys(tmp_path / "sealing", "k1")
        await restart(here, sealing_keys_file=keys)
        sealed = await ended(here.client, (await create(here.client, jsonl(chat(1, "a secret"), chat(2)))).id)
        contents = stored(url)
        assert b"a secret" not in contents
        assert b"a plain word" in contents
        for batch, answer in ((plain, "re: a plain word"), (sealed, "re: a secret")):
            lines = await result(here.client, batch.output_file_id)
            assert lines[0]["response"]["body"]["choices"][0]["message"]["content"] == answer
            file = await here.client.files.retrieve(batch.output_file_id)
            content = await here.client.files.content(batch.output_file_id)
            assert file.bytes == len(content.content)
        # The key is lost: what it sealed is an error, and everything else goes on.
        file = await here.client.files.create(file=("in.jsonl", jsonl(chat(3, "unread"))), purpose="batch")
        await restart(here, sealing_keys_file=sealing_keys(tmp_path / "others", "k2"))
        with pytest.raises(openai.InternalServerError) as refused:
            await here.client.files.content(sealed.output_file_id)
        assert refused.value.code == "sealing_key_lost"
        batch = await here.client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        failed = await ended(here.client, batch.id)
        assert failed.status == "failed"
        assert [error.code for error in failed.errors.data] == ["sealing_key_lost"]
        assert (await ended(here.client, (await create(here.client, jsonl(chat(4)))).id)).status == "completed"


async def test_a_line_whose_key_is_lost_before_it_runs_fails_by_name(keys_file: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    keys = sealing_keys(tmp_path / "sealing", "k1")
    async with world(url, keys_file, tmp_path, sealing_keys_file=keys, max_concurrency=1) as here:
        here.model.open.clear()
        made = await create(here.client, jsonl(*(chat(n) for n in range(3))))
        await until_async(lambda: here.model.waiting, "a line is at the model")
        await restart(here, sealing_keys_file=sealing_keys(tmp_path / "others", "k2"))
        here.model.open.set()
        batch = await ended(here.client, made.id)
        assert (batch.status, batch.request_counts.failed) == ("completed", 3)
        errors = await result(here.client, batch.error_file_id)
        assert {line["error"]["code"] for line in errors} == {"sealing_key_lost"}
