"""Idempotency-Key: what is sent again has one effect and one answer, over both databases, whatever dies between."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import Connection, create_engine, func, select, text, update

from slipway_contracts.headers import JOBS_PASS, JOBS_TENANT
from slipway_contracts.passes import TO_JOBS
from slipway_jobs.store import key_store
from slipway_jobs.store.batch_store import BatchStore, NewBatch
from slipway_jobs.store.database import Database
from slipway_jobs.store.key_store import KeyAnswer, KeyClaim, KeyInProgress, KeyStore, LostKey, TooManyKeys
from slipway_jobs.store.tables import batches, files, idempotency_keys
from slipway_process.database_urls import parse_url
from testkit.until import until_async
from tests.gateway import tenants
from tests.jobs.world import KEY_A, KEY_B, World, chat, jsonl, store_file, world
from tests.support.postgres import Postgres

ANSWER = KeyAnswer("f" * 64, 200, b'{"id": "batch_1"}')
PREDICT = {"model": "chat", "inputs": [[1.0], [2.0]]}
JOB = {"endpoint": "/v1/chat/completions", "body": chat(1)["body"]}


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    opened = Database(url)
    yield opened
    opened.close()


def store_of(database: Database, most: int = 3) -> KeyStore:
    return KeyStore(database, most, keep_s=1000.0, lease_s=10.0)


async def claimed(database: Database, key: str, tenant: str = "t") -> KeyClaim:
    claim = await database.call(store_of(database).begin, tenant, key)
    assert isinstance(claim, KeyClaim)
    return claim


async def age(database: Database, column: str) -> None:
    """As if its time went by."""
    values = {column: 1.0}
    await database.call(lambda connection: connection.execute(update(idempotency_keys).values(values)))


async def test_one_of_many_that_begin_at_once_has_the_key_and_the_others_wait_for_it(database: Database) -> None:
    store = store_of(database)
    found = await asyncio.gather(*(database.call(store.begin, "t", "k") for _ in range(12)))
    [claim] = [one for one in found if isinstance(one, KeyClaim)]
    waits = [one.left_s for one in found if isinstance(one, KeyInProgress)]
    assert len(waits) == 11 and all(0 < left_s <= 10 for left_s in waits)
    await database.call(store.record, claim, ANSWER)
    assert await database.call(store.begin, "t", "k") == ANSWER
    assert isinstance(await database.call(store.begin, "other", "k"), KeyClaim)


async def test_a_claim_that_another_process_took_over_makes_no_batch(database: Database) -> None:
    store, made = store_of(database), BatchStore(database, 10, 1000.0)
    await store_file(database, "file-1")
    stale = await claimed(database, "k")
    await age(database, "lease_until")
    fresh = await claimed(database, "k")

    def create(connection: Connection, claim: KeyClaim, batch_id: str) -> None:
        made.create(connection, NewBatch(batch_id, "t", "/v1/chat/completions", "file-1"))
        store.record(connection, claim, ANSWER)

    await database.call(create, fresh, "batch_2")
    with pytest.raises(LostKey):
        await database.call(create, stale, "batch_1")
    ids = await database.call(lambda connection: connection.execute(select(batches.c.id)).scalars().all())
    assert ids == ["batch_2"]
    # Neither does it free what has an answer.
    for claim in (stale, fresh):
        await database.call(store.release, claim)
    assert await database.call(store.begin, "t", "k") == ANSWER


async def test_a_claim_that_is_renewed_is_kept_and_one_that_is_released_is_free(database: Database) -> None:
    store, claim = store_of(database), await claimed(database, "k")
    await age(database, "lease_until")
    await database.call(store.renew, claim)
    assert isinstance(await database.call(store.begin, "t", "k"), KeyInProgress)
    await database.call(store.release, claim)
    await claimed(database, "k")
    with pytest.raises(LostKey):
        await database.call(store.record, claim, ANSWER)


async def test_keys_of_a_tenant_are_bounded_by_their_number_and_bytes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_store, "MAX_TENANT_ANSWER_BYTES", 1000)
    store = store_of(database)
    first = await claimed(database, "a")
    for key in "bc":
        await claimed(database, key)
    with pytest.raises(TooManyKeys):
        await database.call(store.begin, "t", "d")
    # One that is known is no further one.
    await database.call(store.record, first, KeyAnswer("f", 200, b"x" * 1000))
    assert isinstance(await database.call(store.begin, "t", "a"), KeyAnswer)
    with pytest.raises(TooManyKeys):
        await database.call(store_of(database, most=99).begin, "t", "d")
    await claimed(database, "d", tenant="other")


async def test_a_key_that_is_old_is_free_and_its_row_goes(database: Database) -> None:
    store = store_of(database)
    for key in "ab":
        await database.call(store.record, await claimed(database, key), ANSWER)
    assert await database.call(store.purge) == 0
    await age(database, "expires_at")
    claim = await claimed(database, "a")
    assert await database.call(store.purge) == 1 and await database.call(store.purge) == 0
    await database.call(store.record, claim, ANSWER)


# -- through the gateway


async def post(here: World, path: str, body: Any, key: str, **head: str) -> tuple[int, dict[str, Any], str | None]:
    """Status, body, and whether it was an answer of before."""
    bearer = {"Authorization": f"Bearer {head.pop('bearer', KEY_A)}"}
    response = await here.edge.post(body, path, headers=bearer | {"Idempotency-Key": key} | head)
    return response.status, await response.json(), response.headers.get("Idempotent-Replayed")


async def upload(here: World, data: bytes, key: str, name: str = "in.jsonl") -> tuple[int, dict[str, Any]]:
    """As a client sends it: with another boundary each time."""
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", data, filename=name)
    head = tenants.bearer(KEY_A) | {"Idempotency-Key": key}
    async with here.edge.client.post(f"{here.edge.url}/v1/files", data=form, headers=head) as response:
        return response.status, await response.json()


async def count(url: str, table: Any = batches) -> int:
    """Rows in the database."""
    database = Database(url)
    try:
        query = select(func.count()).select_from(table)
        found: int = await database.call(lambda connection: connection.execute(query).scalar_one())
        return found
    finally:
        database.close()


@pytest.mark.integration
async def test_a_request_that_is_sent_again_gets_the_same_answer_and_has_one_effect(
    url: str, keys_file: str, tmp_path: Path
) -> None:
    async with world(url, keys_file, tmp_path) as here:
        here.model.open.clear()
        status, file = await upload(here, jsonl(chat(1)), "file")
        assert status == 200 and await upload(here, jsonl(chat(1)), "file") == (200, file)
        assert [one.id async for one in here.client.files.list()] == [file["id"]]
        batch = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        for path, body in (("/v1/batches", batch), ("/v1/jobs", JOB), ("/api/v1/batch", PREDICT)):
            first = await post(here, path, body, path)
            assert first[0] in (200, 202) and first[2] is None, first
            assert await post(here, path, body, path) == (*first[:2], "true")
        # What it needed may be gone: the answer stays.
        await here.client.files.delete(file["id"])
        assert (await post(here, "/v1/batches", batch, "/v1/batches"))[0] == 200
        assert (await post(here, "/v1/batches", batch, "another"))[0] == 400
        # Keys belong to their tenant.
        assert (await post(here, "/v1/jobs", JOB, "/v1/jobs", bearer=KEY_B))[2] is None
    assert await count(url) == 4


@pytest.mark.integration
async def test_a_key_with_another_body_or_path_is_refused_by_its_name(url: str, keys_file: str, tmp_path: Path) -> None:
    async with world(url, keys_file, tmp_path) as here:
        assert (await post(here, "/v1/jobs", JOB, "k"))[0] == 202
        assert (await upload(here, b"{}\n", "file"))[0] == 200
        refused = [
            (await post(here, "/v1/jobs", JOB | {"body": chat(2)["body"]}, "k"))[:2],
            (await post(here, "/api/v1/batch", PREDICT, "k"))[:2],
            await upload(here, b"{}\n{}\n", "file"),
            await upload(here, b"{}\n", "file", name="other.jsonl"),
        ]
        for status, body in refused:
            error = body["error"]
            found = (status, error["code"], error["param"])
            assert found == (422, "idempotency_key_reused", "Idempotency-Key"), body
        for key in ("x" * 256, "é", ""):
            status, body, _ = await post(here, "/v1/jobs", JOB, key)
            assert (status, body["error"]["param"]) == (400, "Idempotency-Key"), key
        twice = [("Idempotency-Key", "a"), ("Idempotency-Key", "b"), *tenants.bearer(KEY_A).items()]
        async with here.edge.client.post(f"{here.edge.url}/v1/jobs", json=JOB, headers=twice) as response:
            assert response.status == 400 and (await response.json())["error"]["param"] == "Idempotency-Key"
    assert await count(url) == 1


@pytest.mark.integration
async def test_a_refusal_is_not_kept_and_neither_is_a_pod_shown_the_key(
    url: str, keys_file: str, tmp_path: Path
) -> None:
    async with world(url, keys_file, tmp_path, max_tenant_batches=1) as here:
        here.model.open.clear()
        _, made, _ = await post(here, "/v1/jobs", JOB, "first")
        assert (await post(here, "/v1/jobs", JOB, "k"))[0] == 429
        assert (await post(here, "/v1/jobs", {"endpoint": "/nowhere"}, "k"))[0] == 400
        assert (await upload(here, b"", "k", name="x" * 600))[0] == 400
        here.model.open.set()
        await here.edge.client.delete(f"{here.edge.url}/v1/jobs/{made['job_id']}", headers=tenants.bearer(KEY_A))
        await until_async(
            lambda: post(here, "/v1/jobs", JOB, "k"), "there is room", holds=lambda answer: answer[0] == 202
        )
        assert (await post(here, "/v1/jobs", JOB, "k"))[2] == "true"
        assert not [head for head in here.model.headers if "Idempotency-Key" in head]


async def post_to(here: World, n: int, key: str) -> tuple[int, dict[str, Any], str | None]:
    """A job for process number `n`, as the gateway sends it: status, body, Retry-After."""
    url = f"http://127.0.0.1:{here.jobs[n].settings['port']}/v1/jobs"
    signed = {JOBS_TENANT: "team-a", JOBS_PASS: here.keys.make(TO_JOBS, "team-a", "POST", "/v1/jobs")}
    async with here.edge.client.post(url, json=JOB, headers=signed | {"Idempotency-Key": key}) as response:
        return response.status, await response.json(), response.headers.get("Retry-After")


@pytest.mark.integration
async def test_requests_that_come_at_once_to_two_processes_make_one_batch(
    server: Postgres, keys_file: str, tmp_path: Path
) -> None:
    async with world(server.url, keys_file, tmp_path, processes=2) as here:
        before = await count(server.url)
        answers = await asyncio.gather(*(post_to(here, n % 2, "at once") for n in range(16)))
        answers += [await post_to(here, n, "at once") for n in range(2)]
        made = {body["job_id"] for status, body, _ in answers if status == 202}
        assert {status for status, _, _ in answers} <= {202, 409} and len(made) == 1, answers
        assert all(int(str(after)) >= 1 for status, _, after in answers if status == 409)
        assert await count(server.url) == before + 1


@pytest.mark.integration
async def test_a_process_that_is_killed_within_the_transaction_leaves_the_key_to_another_one(
    server: Postgres, keys_file: str, tmp_path: Path
) -> None:
    """A lock holds the transaction up between the claim and the batch; what it locked itself ends with its process."""
    # Other statements of the processes wait for it too.
    inserts = f"wait_event_type = 'Lock' AND query LIKE 'INSERT INTO {batches.name}%'"
    waits = text(f"SELECT count(*) FROM pg_stat_clear_snapshot(), pg_stat_activity WHERE {inserts}")
    async with world(server.url, keys_file, tmp_path, processes=2, lease=20) as here:
        before = await count(server.url)
        open_claims = select(func.count()).where(idempotency_keys.c.key == "held", idempotency_keys.c.status.is_(None))
        engine = create_engine(parse_url(server.url))
        try:
            with engine.connect() as other:
                other.execute(text(f"LOCK TABLE {batches.name} IN EXCLUSIVE MODE"))
                sent = asyncio.create_task(post_to(here, 0, "held"))
                await until_async(lambda: other.execute(waits).scalar_one(), "the transaction waits for the lock")
                assert other.execute(open_claims).scalar_one() == 1
                await here.jobs[0].end(signal.SIGKILL)
                with pytest.raises(aiohttp.ClientError):
                    await sent
                status, body, after = await post_to(here, 1, "held")
                assert (status, body["error"]["code"]) == (409, "idempotency_key_in_progress")
                assert 1 <= int(str(after)) <= 10
            with engine.begin() as other:  # as if the lease's time went by
                other.execute(update(idempotency_keys).values(lease_until=1.0))
        finally:
            engine.dispose()
        answer = await post_to(here, 1, "held")
        assert answer[0] == 202 and await post_to(here, 1, "held") == answer
        assert await count(server.url) == before + 1


@pytest.mark.integration
async def test_a_process_that_is_killed_at_any_moment_makes_no_second_batch(
    url: str, keys_file: str, tmp_path: Path
) -> None:
    """It is killed before, within or after the transaction; the client sends the request again until it succeeds."""
    async with world(url, keys_file, tmp_path) as here:
        here.model.open.clear()
        ids = []
        for n in range(2):
            key, later_s = f"k-{n}", 0.004 + 0.012 * n
            sent = asyncio.create_task(post(here, "/v1/jobs", JOB, key))
            await asyncio.sleep(later_s)
            await here.jobs[0].end(signal.SIGKILL)
            await here.jobs[0].start()
            first = await sent
            again = await until_async(
                lambda key=key: post(here, "/v1/jobs", JOB, key),  # type: ignore[misc]
                "the lease of the killed process ends",
                holds=lambda answer: answer[0] != 409,
            )
            assert again[0] == 202, again
            if first[0] == 202:
                assert again[:2] == first[:2]
            ids.append(again[1]["job_id"])
        assert len(set(ids)) == 2
    assert await count(url) == 2


@pytest.mark.integration
async def test_an_answer_that_was_recorded_before_the_kill_comes_again(
    url: str, keys_file: str, tmp_path: Path
) -> None:
    async with world(url, keys_file, tmp_path) as here:
        file = await upload(here, jsonl(chat(1)), "file")
        made = await post(here, "/v1/jobs", JOB, "job")
        await here.jobs[0].end(signal.SIGKILL)
        await here.jobs[0].start()
        assert await upload(here, jsonl(chat(1)), "file") == file
        assert await post(here, "/v1/jobs", JOB, "job") == (*made[:2], "true")


@pytest.mark.integration
async def test_an_upload_longer_than_its_lease_keeps_its_key(url: str, keys_file: str, tmp_path: Path) -> None:
    """The others are refused meanwhile, and one whose client leaves in the middle frees it."""
    async with world(url, keys_file, tmp_path, lease=3) as here:
        head = tenants.bearer(KEY_A) | {"Idempotency-Key": "k", "Content-Type": "multipart/form-data; boundary=b"}
        start = b'--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n{}\n'
        end = b'{}\n\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'
        more = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield start
            await more.wait()
            yield end

        async def send() -> int:
            async with here.edge.client.post(f"{here.edge.url}/v1/files", data=slowly(), headers=head) as response:
                return response.status

        for leaves in (True, False):
            more.clear()
            sent = asyncio.create_task(send())
            await until_async(
                lambda: count(url, files),
                "the upload has begun",
                holds=lambda found, leaves=leaves: found == (1 if leaves else 2),  # type: ignore[misc]
            )
            for _ in range(1 if leaves else 8):  # longer than a lease
                await asyncio.sleep(0.5)
                status, body = await upload(here, b"{}\n{}\n", "k")
                assert (status, body["error"]["code"]) == (409, "idempotency_key_in_progress")
            if leaves:
                sent.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sent
                await until_async(
                    lambda: upload(here, b"{}\n", "k", name="x" * 600),
                    "the key is free",
                    holds=lambda answer: answer[0] == 400,
                )
            else:
                more.set()
                assert await sent == 200
        assert (await upload(here, b"{}\n{}\n", "k"))[0] == 200
        assert len([one async for one in here.client.files.list()]) == 1
