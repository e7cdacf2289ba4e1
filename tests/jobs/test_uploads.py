"""Uploads that are slow or large: one tenant's keep no other out, and what is refused names its field."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from testkit.until import until_async
from tests.gateway import tenants
from tests.jobs.world import KEY_A, KEY_B, World, world

FORM = "multipart/form-data; boundary=b"
START = b'--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n{}\n'
END = b'{}\n\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'


async def post(here: World, path: str, body: Any, key: str = KEY_A, **headers: str) -> tuple[int, dict[str, Any]]:
    head = tenants.bearer(key) | headers
    data = {"data": body} if "Content-Type" in headers else {"json": body}
    async with here.edge.client.post(here.edge.url + path, headers=head, **data) as response:
        return response.status, await response.json()


async def test_uploads_of_one_tenant_leave_room_for_those_of_others(keys_file: str, tmp_path: Path) -> None:
    more = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield START
        await more.wait()
        yield END

    async with world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path, max_uploads=4) as here:

        async def upload(body: Any, key: str) -> tuple[int, dict[str, Any]]:
            return await post(here, "/v1/files", body, key, **{"Content-Type": FORM})

        async def receiving() -> bool:
            async with here.edge.client.get(f"{here.jobs[0].admin_url}/metrics") as response:
                return "slipway_jobs_uploads 3.0" in await response.text()

        slow = [asyncio.create_task(upload(slowly(), KEY_A)) for _ in range(3)]
        await until_async(receiving, "all are received")
        status, body = await upload(START + END, KEY_A)
        assert (status, body["error"]["code"]) == (429, "too_many_uploads")
        for _ in range(3):
            assert (await upload(START + END, KEY_B))[0] == 200
        more.set()
        assert [status for status, _ in await asyncio.gather(*slow)] == [200, 200, 200]
        assert (await upload(START + END, KEY_A))[0] == 200


async def test_a_repeated_upload_that_is_too_large_is_refused_before_its_end(keys_file: str, tmp_path: Path) -> None:
    """It is compared with the first one, and nothing of it is kept."""
    head = {"Content-Type": FORM, "Idempotency-Key": "k"}
    async with world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path, max_file_bytes=100_000) as here:
        assert (await post(here, "/v1/files", START + END, **head))[0] == 200
        status, body = await post(here, "/v1/files", START + b"x" * 150_000 + END, **head)
        assert (status, body["error"]["code"]) == (413, "file_too_large")
        assert (await post(here, "/v1/files", START + END, **head))[0] == 200


@pytest.mark.parametrize(("retention", "param"), [(7200, "seconds"), (600, "expires_after")])
async def test_nothing_is_promised_for_longer_than_files_are_kept(
    keys_file: str, tmp_path: Path, retention: int, param: str
) -> None:
    async with world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path, retention=retention) as here:
        for seconds in (7200, 7201):
            fits = seconds <= retention
            given = (("anchor", "created_at"), ("seconds", f"{seconds}"), ("purpose", "batch"))
            names = {"anchor": "expires_after[anchor]", "seconds": "expires_after[seconds]", "purpose": "purpose"}
            fields = [
                f'--b\r\nContent-Disposition: form-data; name="{names[name]}"\r\n\r\n{value}\r\n'.encode()
                for name, value in given
            ]
            form = b"".join(fields) + START + b"\r\n--b--\r\n"
            status, body = await post(here, "/v1/files", form, **{"Content-Type": FORM})
            assert status == (200 if fits else 400) and (fits or body["error"]["param"].endswith(param)), body
            file = await here.client.files.create(file=("a", b"{}"), purpose="batch")
            batch = {"input_file_id": file.id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
            batch["output_expires_after"] = {"anchor": "created_at", "seconds": seconds}
            status, body = await post(here, "/v1/batches", batch)
            assert status == (200 if fits else 400) and (fits or body["error"]["param"].endswith(param)), body


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/api/v1/batch", {"model": "chat", "inputs": ["x" * 2000]}, "inputs"),
        ("/api/v1/batch", {"model": "chat", "inputs": ["x" * 900] * 9}, "inputs"),
        ("/v1/jobs", {"endpoint": "/v1/embeddings", "body": {"model": "m", "input": "x" * 945}}, "body"),
    ],
)
async def test_what_is_too_large_in_a_body_names_its_field(
    keys_file: str, tmp_path: Path, path: str, body: Any, param: str
) -> None:
    limits = {"max_line_bytes": 1024, "max_file_bytes": 5000}
    async with world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path, **limits) as here:
        status, answer = await post(here, path, body)
        assert status in (400, 413) and answer["error"]["param"] == param, answer


FIELD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="'


@pytest.mark.parametrize(
    "form",
    [
        FIELD + b"a" * 60_000 + b'"\r\n\r\n{}\r\n--b--\r\n',
        FIELD + b"a" * (1 << 19),
        b"--b\r\n" + b"X-A: b\r\n" * 10_000,
        b"--b\r\nno field\r\n\r\n{}\r\n--b--\r\n",
        START.replace(b"\r\n\r\n", b"\r\nContent-Type: multipart/mixed\r\n\r\n") + END,
    ],
    ids=["filename", "head", "headers", "no field", "parts"],
)
async def test_a_malformed_form_is_the_fault_of_its_client(keys_file: str, tmp_path: Path, form: bytes) -> None:
    async with world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path) as here:
        status, answer = await post(here, "/v1/files", form, **{"Content-Type": FORM})
        error = answer["error"]
        assert (status, error["code"], error["param"]) == (400, "invalid_form", "file"), answer
