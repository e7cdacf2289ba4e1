"""JSON that is nested deeply, from clients or from models: each level that is accepted can be read again."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from slipway_jobs.input_line import InvalidLine, read_line
from tests.gateway import tenants
from tests.jobs.world import KEY_A, World, chat, create, ended, result, seen, world

# The interpreter reads some 1000 levels, less those of its own stack.
DEPTHS = [100, 500, *range(540, 620, 10), 800, *range(940, 1000, 7), 5000]


@pytest.fixture
async def here(keys_file: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path) as made:
        yield made


def nested(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


async def post(here: World, path: str, body: str) -> tuple[int, dict[str, Any]]:
    headers = tenants.bearer(KEY_A) | {"Content-Type": "application/json"}
    response = await here.edge.client.post(here.edge.url + path, data=body, headers=headers)
    return response.status, await response.json()


async def test_a_job_whose_response_is_nested_deeply_is_shown(here: World) -> None:
    """With 980 levels every look at it was a 500."""
    for depth in DEPTHS:
        here.model.bodies[f"deep {depth}"] = nested(depth).encode()
        body = chat(0, f"deep {depth}")["body"]
        response = await here.edge.client.post(
            f"{here.edge.url}/v1/jobs",
            json={"endpoint": "/v1/chat/completions", "body": body},
            headers=tenants.bearer(KEY_A),
        )
        assert response.status == 202
        shown = await seen(here, f"/v1/jobs/{(await response.json())['job_id']}", "completed")
        assert shown["result"] == nested(depth) or str(shown["result"]).replace("'", "") == nested(depth), depth
        assert isinstance(shown["result"], str) == (depth > 600) or 500 < depth <= 600, depth


@pytest.mark.parametrize("path", ["/v1/jobs", "/api/v1/batch"])
async def test_a_request_that_is_nested_too_deeply_is_refused_and_a_taken_one_is_shown(here: World, path: str) -> None:
    refused = []
    for depth in DEPTHS:
        body = f'{{"model": "chat", "input": {nested(depth)}}}'
        if path == "/v1/jobs":
            request = f'{{"endpoint": "/api/v1/predict", "body": {body}}}'
        else:
            request = f'{{"model": "chat", "inputs": [{nested(depth)}]}}'
        status, found = await post(here, path, request)
        refused.append(status == 400)
        if status == 202:
            place = f"{path}/{found.get('job_id') or found['batch_id']}"
            await seen(here, place, "completed", "failed")
        else:
            assert (status, "nested too deeply" in found["error"]["message"]) == (400, True), (depth, found)
    assert refused == sorted(refused) and not refused[0] and refused[-1], refused


def test_a_line_of_a_file_is_refused_by_the_name_of_its_field() -> None:
    line = '{"custom_id": "a", "method": "POST", "url": "/classify", "body": {"model": "m", "input": %s}}'
    assert read_line((line % nested(500)).encode(), "/classify").custom_id == "a"
    with pytest.raises(InvalidLine, match="body is nested too deeply") as caught:
        read_line((line % nested(700)).encode(), "/classify")
    assert caught.value.param == "body"
    with pytest.raises(InvalidLine, match="nested too deeply"):
        read_line((line % nested(5000)).encode(), "/classify")


async def test_a_batch_of_nested_lines_ends(here: World) -> None:
    here.model.bodies["prompt 0"] = nested(970).encode()
    batch = await create(here.client, (str(chat(0)).replace("'", '"') + "\n").encode())
    done = await ended(here.client, batch.id)
    [line] = await result(here.client, done.output_file_id)
    assert line["response"]["body"] == nested(970)
