"""Files and batches end to end: the unmodified OpenAI client, a real gateway, a real jobs process, a model."""

import json
from pathlib import Path

import aiohttp
import openai
import pytest

from testkit.until import until_async
from tests.gateway import tenants
from tests.jobs.world import KEY_A, chat, create, ended, jsonl, result, seen, world

pytestmark = pytest.mark.integration


async def test_a_batch_runs_through_the_gateway_and_its_files_are_in_order(
    url: str, keys_file: str, tmp_path: Path
) -> None:
    lines = [chat(n) for n in range(60)]
    async with world(url, keys_file, tmp_path) as here:
        here.model.statuses = {"prompt 7": [400], "prompt 9": [500, 502], "prompt 11": [500] * 9, "prompt 13": [429]}
        made = await create(here.client, jsonl(*lines), metadata={"run": "1"})
        assert (made.status, made.endpoint, made.metadata) == ("validating", "/v1/chat/completions", {"run": "1"})
        batch = await ended(here.client, made.id)
        assert batch.status == "completed" and batch.in_progress_at and batch.finalizing_at and batch.completed_at
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (60, 58, 2)
        output = await result(here.client, batch.output_file_id)
        assert [one["custom_id"] for one in output] == [f"line-{n}" for n in range(60) if n not in (7, 11)]
        assert {one["response"]["revision"] for one in output} == {"r1"}
        assert output[9 - 1]["response"]["body"]["choices"][0]["message"]["content"] == "re: prompt 9"
        errors = await result(here.client, batch.error_file_id)
        assert [(one["custom_id"], one["response"]["status_code"]) for one in errors] == [
            ("line-7", 400),
            ("line-11", 500),
        ]
        assert {head.get("X-Slipway-Priority-Limit") for head in here.model.headers} == {"1000"}
        assert not [head for head in here.model.headers if "X-Slipway-Jobs-Pass" in head]
        file = await here.client.files.retrieve(str(batch.output_file_id))
        assert file.bytes == len((await here.client.files.content(file.id)).content)
        assert file.purpose == "batch_output"
        # The line that the model refused for the moment came back without a lost attempt.
        assert here.model.answers["prompt 13"] >= 2


async def test_a_file_comes_back_as_it_was_and_goes_when_it_is_deleted(
    url: str, keys_file: str, tmp_path: Path
) -> None:
    data = jsonl(chat(1)) + b"\n\r\n" + '{"é": 1}\u2028'.encode() + b"\xff\x00 no end"
    async with world(url, keys_file, tmp_path) as here:
        file = await here.client.files.create(file=("a file.jsonl", data), purpose="batch")
        assert (file.bytes, file.filename, file.purpose) == (len(data), "a file.jsonl", "batch")
        assert (await here.client.files.content(file.id)).content == data
        assert [one.id async for one in here.client.files.list(limit=1)] == [file.id]
        assert (await here.client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await here.client.files.retrieve(file.id)
        assert [one.id async for one in here.client.files.list()] == []


async def test_a_tenant_sees_nothing_of_another_ones(url: str, keys_file: str, tmp_path: Path) -> None:
    async with world(url, keys_file, tmp_path) as here:
        batch = await ended(here.client, (await create(here.client, jsonl(chat(1)))).id)
        other = here.clients["team-b"]
        for call in (
            other.files.retrieve(batch.input_file_id),
            other.files.content(str(batch.output_file_id)),
            other.files.delete(batch.input_file_id),
            other.batches.retrieve(batch.id),
            other.batches.cancel(batch.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        with pytest.raises(openai.BadRequestError, match="There is no file"):
            await other.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
            )
        assert [one.id async for one in other.batches.list()] == [one.id async for one in other.files.list()] == []
        assert [one.id async for one in here.client.batches.list()] == [batch.id]


async def test_an_invalid_file_fails_the_batch_with_the_numbers_of_its_lines(
    url: str, keys_file: str, tmp_path: Path
) -> None:
    streams, wrong = chat(3, stream=True), chat(4) | {"url": "/v1/embeddings"}
    data = jsonl(chat(1), chat(1), streams, wrong, chat(5) | {"extra": 1}, [1]) + b"not json\n" + jsonl(chat(8))
    async with world(url, keys_file, tmp_path) as here:
        batch = await ended(here.client, (await create(here.client, data)).id)
        assert batch.status == "failed" and batch.failed_at and batch.errors
        found = {error.line: error.code for error in batch.errors.data or []}
        assert found == {
            2: "duplicate_custom_id",
            3: "stream_not_supported",
            4: "mismatched_endpoint",
            5: "unknown_field",
            6: "invalid_json_line",
            7: "invalid_json_line",
        }
        empty = await ended(here.client, (await create(here.client, b"\n\n")).id)
        assert [error.code for error in empty.errors.data] == ["empty_file"]
        assert not here.model.answers


async def test_a_cancelled_batch_keeps_what_ran_and_names_what_did_not(
    url: str, keys_file: str, tmp_path: Path
) -> None:
    async with world(url, keys_file, tmp_path) as here:
        here.model.open.clear()
        made = await create(here.client, jsonl(*(chat(n) for n in range(50))))
        await until_async(lambda: here.model.waiting, "a line is at the model")
        cancelling = await here.client.batches.cancel(made.id)
        assert cancelling.status == "cancelling" and cancelling.cancelling_at
        assert (await here.client.batches.cancel(made.id)).status == "cancelling"
        here.model.open.set()
        batch = await ended(here.client, made.id)
        output = await result(here.client, batch.output_file_id)
        errors = await result(here.client, batch.error_file_id)
        assert batch.status == "cancelled" and batch.cancelled_at
        assert len(output) + len(errors) == 50 and 0 < len(output) < 50
        assert {one["error"]["code"] for one in errors} == {"batch_cancelled"}
        assert len(output) == sum(here.model.answers.values()) == batch.request_counts.completed
        with pytest.raises(openai.ConflictError):
            await here.client.batches.cancel(
                (await ended(here.client, (await create(here.client, jsonl(chat(1)))).id)).id
            )


async def test_a_batch_expires_with_what_ran_in_its_window(url: str, keys_file: str, tmp_path: Path) -> None:
    async with world(url, keys_file, tmp_path, completion_window=2) as here:
        here.model.statuses = {f"prompt {n}": [503] * 1000 for n in range(1, 5)}
        made = await create(here.client, jsonl(*(chat(n) for n in range(5))))
        batch = await ended(here.client, made.id)
        assert batch.status == "expired" and batch.expired_at
        assert [one["custom_id"] for one in await result(here.client, batch.output_file_id)] == ["line-0"]
        errors = await result(here.client, batch.error_file_id)
        assert [one["error"]["code"] for one in errors] == ["batch_expired"] * 4


async def test_lists_of_batches_have_pages(url: str, keys_file: str, tmp_path: Path) -> None:
    async with world(url, keys_file, tmp_path) as here:
        made = [(await create(here.client, jsonl(chat(1)))).id for _ in range(5)]
        page = await here.client.batches.list(limit=2)
        assert [one.id for one in page.data] == made[:2:-1] and page.has_more
        assert [one.id async for one in here.client.batches.list(limit=2)] == made[::-1]
        with pytest.raises(openai.BadRequestError, match="limit"):
            await here.client.batches.list(limit=0)


async def test_what_a_client_sends_wrong_is_refused_by_its_field(url: str, keys_file: str, tmp_path: Path) -> None:
    async with world(url, keys_file, tmp_path, max_file_bytes=200_000, max_line_bytes=100_000) as here:
        with pytest.raises(openai.BadRequestError, match="purpose must be batch"):
            await here.client.files.create(file=("a", b"{}"), purpose="assistants")
        with pytest.raises(openai.APIStatusError, match="exceeds 200000 bytes"):
            await here.client.files.create(file=("a", b"{}\n" * 100_000), purpose="batch")
        with pytest.raises(openai.BadRequestError, match="more than 100000 bytes"):
            await here.client.files.create(file=("a", b"x" * 150_000), purpose="batch")
        file = await here.client.files.create(file=("a", b"{}"), purpose="batch")
        right = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        for field, value in (
            ("completion_window", "1h"),
            ("endpoint", "/v1/batches"),
            ("endpoint", ["/v1/embeddings"]),
            ("metadata", {"a": 1}),
            ("input_file_id", 7),
            ("input_file_id", "a\0b"),
            ("output_expires_after", {"anchor": "created_at", "seconds": True}),
            ("priority", 1),
        ):
            answer = await here.edge.post(right | {field: value}, "/v1/batches", headers=tenants.bearer(KEY_A))
            body = await answer.json()
            assert answer.status == 400 and body["error"]["param"].startswith(field), (field, body)
        for body in (b"", b"[]", b"\xff", b"{", b'{"endpoint":' + b"[" * 100_000):
            answer = await here.edge.post(body, "/v1/batches", headers=tenants.bearer(KEY_A))
            assert answer.status == 400, await answer.text()


async def test_a_form_that_is_broken_is_refused_and_leaves_no_file(url: str, keys_file: str, tmp_path: Path) -> None:
    def form(*parts: bytes, end: bytes = b"--b--\r\n") -> bytes:
        return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + end

    def field(name: str, value: bytes, more: str = "") -> bytes:
        return f'Content-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value

    file, purpose = field("file", b"{}\n", '; filename="a"'), field("purpose", b"batch")
    async with world(url, keys_file, tmp_path) as here:
        statuses = []
        for body in (
            form(file, purpose),
            form(purpose, file),
            form(purpose),
            form(file),
            form(file, purpose, purpose),
            form(file, file, purpose),
            form(field("purpose", b"\xff"), file),
            form(field("purpose", b"batch" * 1000), file),
            form(*([field("x", b"")] * 40)),
            form(field("file", b"{}", '; filename="' + "x" * 600 + '"'), purpose),
            form(purpose, file, end=b""),
            form(purpose, file)[:-20],
            form(purpose, field("expires_after[seconds]", b"3600"), file),
            b"",
            b"--b",
            b"--b\r\n\r\n" * 10,
            b"nothing",
        ):
            head = tenants.bearer(KEY_A) | {"Content-Type": "multipart/form-data; boundary=b"}
            answer = await here.edge.post(body, "/v1/files", headers=head)
            statuses.append(answer.status)
        assert statuses[:2] == [200, 200] and set(statuses[2:]) == {400}, statuses
        for kind in ("application/json", "multipart/form-data", "multipart/mixed; boundary=b"):
            head = tenants.bearer(KEY_A) | {"Content-Type": kind}
            assert (await here.edge.post(form(file, purpose), "/v1/files", headers=head)).status == 415
        assert len([one async for one in here.client.files.list()]) == 2


async def test_without_authentication_batches_belong_to_no_tenant(url: str, keys_file: str, tmp_path: Path) -> None:
    async with world(url, keys_file, tmp_path, known=()) as here:
        batch = await ended(here.client, (await create(here.client, jsonl(chat(1)))).id)
        assert batch.status == "completed"
        assert [one.id async for one in here.clients["team-b"].batches.list()] == [batch.id]


async def test_without_the_jobs_process_the_gateway_says_so(keys_file: str, tmp_path: Path) -> None:
    async with world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path) as here:
        await here.jobs[0].end()
        with pytest.raises(openai.InternalServerError, match="cannot be reached") as refused:
            await here.client.batches.list()
        assert refused.value.response.headers["Retry-After"]
        answer = await here.edge.post(headers=tenants.bearer(KEY_A), body=chat(1)["body"])
        assert answer.status == 200


async def test_the_port_of_the_jobs_process_takes_requests_of_gateways_alone(keys_file: str, tmp_path: Path) -> None:
    async with world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path) as here, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{here.jobs[0].settings['port']}/v1/files"
        right = {
            "X-Slipway-Jobs-Tenant": "team-a",
            "X-Slipway-Jobs-Pass": here.keys.make("jobs", "team-a", "GET", "/v1/files"),
        }
        statuses = []
        for headers in (
            right,
            {},
            right | {"X-Slipway-Jobs-Tenant": "team-b"},
            right | {"X-Slipway-Jobs-Pass": here.keys.make("gateway", "team-a", "GET", "/v1/files")},
            right | {"X-Slipway-Jobs-Pass": here.keys.make("jobs", "team-a", "POST", "/v1/files")},
        ):
            async with session.get(url, headers=headers) as response:
                statuses.append(response.status)
        assert statuses == [200, 401, 401, 401, 401]
        async with session.get(f"{here.jobs[0].admin_url}/metrics") as response:
            page = await response.text()
        assert 'slipway_jobs_requests_total{code="401"} 4.0' in page


async def test_a_job_has_one_request_and_its_result(url: str, keys_file: str, tmp_path: Path) -> None:
    async with world(url, keys_file, tmp_path) as here:
        here.model.statuses = {"bad": [422]}
        head = tenants.bearer(KEY_A)
        bodies = [chat(1)["body"], chat(2, "bad")["body"]]
        found = []
        for body in bodies:
            made = await here.edge.post({"endpoint": "/v1/chat/completions", "body": body}, "/v1/jobs", headers=head)
            assert made.status == 202
            job = (await made.json())["job_id"]
            found.append(await seen(here, f"/v1/jobs/{job}", "completed", "failed"))
        good, bad = found
        assert (good["status"], good["status_code"], good["revision"], good["error"]) == ("completed", 200, "r1", None)
        assert good["result"]["choices"][0]["message"]["content"] == "re: prompt 1"
        assert (bad["status"], bad["status_code"], bad["result"]) == ("failed", 422, None)
        assert bad["error"] == {"message": "no", "code": "no"}
        refused = await here.edge.post({"endpoint": "/v1/chat/completions", "body": {}}, "/v1/jobs", headers=head)
        assert (await refused.json())["error"]["param"] == "body.model"
        # It is no batch of OpenAI's.
        assert [one.id async for one in here.client.batches.list()] == []


async def test_a_job_that_waits_is_cancelled(url: str, keys_file: str, tmp_path: Path) -> None:
    async with world(url, keys_file, tmp_path) as here:
        here.model.statuses = {"prompt 1": [503] * 1000}
        head = tenants.bearer(KEY_A)
        given = {"endpoint": "/v1/chat/completions", "body": chat(1)["body"]}
        job = (await (await here.edge.post(given, "/v1/jobs", headers=head)).json())["job_id"]
        path = f"/v1/jobs/{job}"
        assert (await (await here.edge.client.delete(here.edge.url + path, headers=head)).json())[
            "status"
        ] == "cancelling"
        shown = await seen(here, path, "cancelled")
        assert shown["error"]["code"] == "batch_cancelled"


async def test_inputs_in_one_body_become_predictions_in_their_order(url: str, keys_file: str, tmp_path: Path) -> None:
    async with world(url, keys_file, tmp_path) as here:
        head = tenants.bearer(KEY_A)
        inputs = [{"x": n} for n in range(30)]
        made = await here.edge.post({"model": "chat", "inputs": inputs}, "/api/v1/batch", headers=head)
        body = await made.json()
        assert made.status == 202 and body["status"] == "queued" and body["estimated_seconds"] is None
        shown = await seen(here, f"/api/v1/batch/{body['batch_id']}", "completed")
        assert shown["estimated_seconds"] == shown["estimated_time"] == 0
        assert (shown["total"], shown["completed"], shown["failed"], shown["errors_url"]) == (30, 30, 0, None)
        text = await (await here.edge.client.get(here.edge.url + shown["results_url"], headers=head)).text()
        predictions = [json.loads(json.loads(line)["response"]["body"]["prediction"]) for line in text.splitlines()]
        assert predictions == inputs
        again = await here.edge.post({"model": "chat", "inputs": inputs[:3]}, "/api/v1/batch", headers=head)
        assert 0 < (await again.json())["estimated_seconds"] < 100, "by the time that the first took"
        refused = await here.edge.post({"model": "chat", "inputs": []}, "/api/v1/batch", headers=head)
        assert (await refused.json())["error"]["param"] == "inputs"


@pytest.mark.finding("F12")
async def test_a_tenant_that_is_alone_leaves_places_for_the_next_one(keys_file: str, tmp_path: Path) -> None:
    """It took all of them, for as long as its requests took."""
    database_url = f"sqlite:///{tmp_path}/jobs.db"
    async with world(database_url, keys_file, tmp_path, max_concurrency=8, batch_slots=100) as here:
        first = await create(here.client, jsonl(*(chat(n) for n in range(60))))
        await ended(here.client, first.id)  # its window has grown
        here.model.open.clear()
        await create(here.client, jsonl(*(chat(n) for n in range(20))))
        await until_async(lambda: here.model.waiting, "the tenant has its places", holds=lambda waiting: waiting == 6)
        await create(here.clients["team-b"], jsonl(chat(1)))
        await until_async(lambda: here.model.waiting, "the next one has one", holds=lambda waiting: waiting == 7)
        here.model.open.set()
