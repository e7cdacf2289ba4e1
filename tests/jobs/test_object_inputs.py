"""Input files of batches that are objects: whose bucket, within which bounds, and of one version."""

import asyncio
import json
import threading
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import openai
import pytest
from aiohttp import web
from sqlalchemy import Connection

from devcluster.ports import reserve_port
from slipway_jobs.object_stores.listed import MAX_KEY_BYTES, ObjectName, ObjectStore, StoreList, parse_uri
from slipway_jobs.object_stores.reading import CODES, ObjectReader, ObjectRefused
from slipway_jobs.object_stores.signing import Credentials, path_of, signed_headers
from slipway_jobs.serving.upload import Uploads
from slipway_jobs.settings import JobsSettings
from slipway_jobs.store.database import Database
from slipway_jobs.store.file_store import FileStore, NewFile, Row
from tests.gateway.harness import upstream
from tests.jobs.world import World, chat, ended, jsonl, result, world
from tests.support.stores import S3, moto

KEYS = {"accessKeyId": "AKIAEXAMPLE", "secretAccessKey": "s3cr3t/value"}


def listed(tmp_path: Path, *stores: dict[str, Any]) -> StoreList:
    path = tmp_path / "stores.json"
    path.write_text(json.dumps({"stores": list(stores)}))
    return StoreList(str(path))


def store(endpoint: str = "https://s3.example.com", **changes: Any) -> dict[str, Any]:
    return {"tenant": "team-a", "bucket": "inputs", "endpoint": endpoint, "region": "us-east-1"} | KEYS | changes


# -- what a request names


@pytest.mark.parametrize("key", ["a", "a/b.jsonl", "ä ö?x=1#y%2F", "a//b", "...", "k" * MAX_KEY_BYTES])
def test_a_key_is_taken_as_it_is_written(key: str) -> None:
    assert parse_uri(f"s3://my-bucket/{key}") == ObjectName("my-bucket", key)


@pytest.mark.parametrize(
    "text",
    [
        "s3://", "s3://b", "s3://bucket", "s3://bucket/", "s3:///key", "s3://Bucket/key", "s3://b_c/key", "S3://bucket/k",
        "s3://bucket/../other/key", "s3://bucket/a/./b", "s3://bucket/..", "s3://bucket/a\nb", "s3://bucket/\x7f",
        "s3://user:x@bucket/key", f"s3://bucket/{'k' * (MAX_KEY_BYTES + 1)}", f"s3://bucket/{'é' * MAX_KEY_BYTES}",
        "https://bucket/key",
    ],
)  # fmt: skip
def test_what_names_no_object_or_leaves_its_bucket_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"s3://BUCKET/KEY|key"):
        parse_uri(text)


# -- whose


def test_a_tenant_has_the_stores_that_are_listed_for_it_and_the_longest_prefix_counts(tmp_path: Path) -> None:
    stores = listed(
        tmp_path, store(prefix="a/"), store(prefix="a/b/", region="r2"), store(tenant="team-b", prefix="c/")
    )
    assert (found := stores.find("team-a", ObjectName("inputs", "a/x"))) and found.region == "us-east-1"
    assert (found := stores.find("team-a", ObjectName("inputs", "a/b/x"))) and found.region == "r2"
    for tenant, bucket, key in (("team-a", "inputs", "c/x"), ("team-b", "inputs", "a/x"), ("team-a", "other", "a/x")):
        assert stores.find(tenant, ObjectName(bucket, key)) is None
    StoreList("").check()
    assert StoreList("").find("team-a", ObjectName("inputs", "a/x")) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"bucket": "In_puts"}, {"endpoint": "s3.example.com"}, {"endpoint": "ftp://s3.example.com"},
        {"endpoint": "https://s3.example.com/path"}, {"endpoint": "https://u:p@s3.example.com"},
        {"endpoint": "https://s3.example.com?a=b"}, {"endpoint": "https://@s3.example.com"}, {"endpoint": "https://[::"},
        {"endpoint": "https://s3.example.com:99999"}, {"endpoint": "https://"}, {"endpoint": "https://h\n"},
        {"region": "us east"}, {"region": "us-east-1\n"}, {"accessKeyId": "a\n"}, {"secretAccessKey": "a\n"},
        {"tenant": ""}, {"accessKeyId": "a\nb"},
        {"secretAccessKey": None}, {"typo": 1},
    ],
)  # fmt: skip
def test_a_list_that_is_wrong_is_refused_as_a_whole_and_shows_no_credentials(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"stores\.json") as error:
        listed(tmp_path, store(), store(**changes)).check()
    assert "s3cr3t" not in str(error.value)
    assert "s3cr3t" not in repr(listed(tmp_path, store()).find("team-a", ObjectName("inputs", "a")))


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://s3.example.com/",
        "https://S3.Example.com",
        "https://s3.example.com:443",
        "http://minio:80",
        "http://[::1]:9",
    ],
)
def test_an_endpoint_may_name_the_port_of_its_scheme_and_be_written_in_any_case(tmp_path: Path, endpoint: str) -> None:
    listed(tmp_path, store(endpoint)).check()


def test_a_file_that_is_missing_or_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stores.json").write_text("{")
    for name in ("stores.json", "missing.json"):
        with pytest.raises(ValueError, match=name):
            StoreList(str(tmp_path / name)).check()


# -- signatures


def test_the_signature_is_that_of_amazons_example() -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html, "GET object"."""
    credentials = Credentials("us-east-1", "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    now = datetime(2013, 5, 24, tzinfo=UTC)
    sent = signed_headers("examplebucket.s3.amazonaws.com", "/test.txt", {"Range": "bytes=0-9"}, credentials, now)
    assert sent["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


def test_a_session_token_is_sent_and_signed_and_a_path_is_encoded_once() -> None:
    sent = signed_headers("h", "/b/k", {}, Credentials("r", "a", "s", "token"), datetime(2026, 1, 1, tzinfo=UTC))
    assert sent["x-amz-security-token"] == "token" and "x-amz-security-token" in sent["authorization"]
    assert path_of("b", "ä b/c+%2F?#~") == "/b/%C3%A4%20b/c%2B%252F%3F%23~"


# -- faults of stores, of a server that makes them

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
DATA = jsonl(*map(chat, range(50)))


async def read(handler: Handler, most_bytes: int = 1 << 20) -> tuple[bytes, list[web.Request]]:
    async with upstream(handler) as server:
        own = ObjectStore(tenant="t", bucket="inputs", endpoint=server.url, region="r", access_key_id="a",
                          secret_access_key="s")  # fmt: skip
        async with aclosing(ObjectReader(own, ObjectName("inputs", "a b"), most_bytes).chunks()) as chunks:
            return b"".join([chunk async for chunk in chunks]), server.seen


def answer(data: bytes = DATA, status: int = 200, **headers: Any) -> web.Response:
    return web.Response(body=data, status=status, headers={"ETag": '"v1"'} | headers)


async def broken(request: web.Request, data: bytes, status: int = 200, **headers: str) -> web.StreamResponse:
    """A response whose connection breaks after half of its bytes."""
    response = web.StreamResponse(status=status, headers={"ETag": '"v1"'} | headers)
    response.content_length = len(data)
    await response.prepare(request)
    await response.write(data[: len(data) // 2])
    assert request.transport
    request.transport.close()
    return response


async def test_after_a_broken_connection_the_rest_of_the_same_version_is_read() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        if "Range" not in request.headers:
            return await broken(request, DATA)
        assert request.headers["If-Match"] == '"v1"'
        at = int(request.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        return answer(DATA[at:], 206, **{"Content-Range": f"bytes {at}-{len(DATA) - 1}/{len(DATA)}"})

    data, seen = await read(serve)
    assert data == DATA and len(seen) == 2 and seen[0].rel_url.raw_path == "/inputs/a%20b"


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (412, {}),
        (416, {}),
        (206, {"ETag": '"v2"'}),
        (206, {"Content-Range": "bytes 0-9/10"}),
        (206, {}),
    ],
)
async def test_an_object_that_changed_meanwhile_is_refused(status: int, headers: dict[str, Any]) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        if "Range" not in request.headers:
            return await broken(request, DATA)
        return answer(b"x", status, **headers)

    with pytest.raises(ObjectRefused) as refused:
        await read(serve)
    assert refused.value.code == "object_changed"


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (lambda: answer(b"", 404), "object_not_found"),
        (lambda: answer(b"", 403), "object_access_denied"),
        (lambda: answer(b"", 301, Location="http://169.254.169.254/"), "object_store_failed"),
        (lambda: answer(b"", 400), "object_store_failed"),
        (lambda: answer(DATA, 206), "object_store_failed"),
        (lambda: web.Response(body=DATA), "object_store_failed"),
        (lambda: answer(DATA, 200, **{"Content-Encoding": "gzip"}), "object_encoded"),
        (lambda: answer(b"x" * 2000), "file_too_large"),
        (lambda: answer(b"", 503), "object_store_unavailable"),
    ],
)
async def test_refusals_of_stores_have_a_code_and_nothing_of_the_stores_text(
    response: Callable[[], web.Response], code: str
) -> None:
    async def serve(_: web.Request) -> web.StreamResponse:
        return response()

    with pytest.raises(ObjectRefused) as refused:
        await read(serve, 1000)
    assert refused.value.code == code and code in CODES


async def test_a_store_that_always_breaks_off_is_unavailable_and_one_that_goes_on_is_not() -> None:
    tries = []

    async def nothing(request: web.Request) -> web.StreamResponse:
        tries.append(request)
        return await broken(request, b"")

    async def silent(request: web.Request) -> web.StreamResponse:
        tries.append(request)
        assert request.transport
        request.transport.close()
        return web.Response()

    with pytest.raises(ObjectRefused) as refused:
        await read(silent)
    # aiohttp sends a GET once more where its connection ended without a response.
    assert refused.value.code == "object_store_unavailable" and 3 <= len(tries) <= 6
    assert (await read(nothing))[0] == b""  # an empty object is whole


async def test_a_name_that_resolves_to_a_reserved_address_is_not_called() -> None:
    """The administrator wrote a name, and whoever answers for names chose where it leads."""
    own = ObjectStore(
        tenant="t", bucket="inputs", endpoint="http://localhost:9", region="r", access_key_id="a", secret_access_key="s"
    )
    with pytest.raises(ObjectRefused, match="reserved"):
        async with aclosing(ObjectReader(own, ObjectName("inputs", "a"), 10).chunks()) as chunks:
            async for _ in chunks:
                pass


# -- copies


async def test_a_copy_whose_client_leaves_at_its_end_is_no_file(keys_file: str, tmp_path: Path) -> None:
    """The thread that makes it visible goes on."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    given: dict[str, Any] = {"gateway_url": "http://unused", "keys_file": keys_file, "database_url": url}
    settings = JobsSettings(**given)
    database = Database(url)
    began, goes_on = threading.Event(), threading.Event()

    class Held(FileStore):
        def finish(self, connection: Connection, new: NewFile) -> Row:
            began.set()
            assert goes_on.wait(60)
            return super().finish(connection, new)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"{}\n"

    held, new = Held(database, 1 << 30), NewFile("file-1", "t", 1000.0)
    try:
        copying = asyncio.create_task(Uploads(settings, database, held).copy(new, chunks(), "input_file_id"))
        assert await asyncio.to_thread(began.wait, 60)
        copying.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await copying
        assert await database.call(held.listed, "t", 10) == []
    finally:
        goes_on.set()
        database.close()


# -- whole


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with moto(tmp_path_factory.mktemp("moto") / "log") as server:
        yield server


async def batch_of(here: World, uri: str, tenant: str = "team-a", **options: Any) -> Any:
    given = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | options
    return await here.clients[tenant].batches.create(input_file_id=uri, **given)


async def refusal(here: World, uri: str, tenant: str = "team-a", **options: Any) -> tuple[int, str, str | None]:
    with pytest.raises(openai.APIStatusError) as error:
        await batch_of(here, uri, tenant, **options)
    body: Any = error.value.body
    return error.value.status_code, body["code"], body["param"]


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_a_batch_of_an_object_runs_as_one_of_an_upload(s3: S3, keys_file: str, tmp_path: Path) -> None:
    """moto checks no signatures here; see the last test."""
    lines = jsonl(*map(chat, range(7)))
    s3.put("inputs", {"in/7 ä.jsonl": lines, "in/bad.jsonl": b"{}\n", "out/7.jsonl": lines,
                      "in/large.jsonl": b"x" * 3000})  # fmt: skip
    listed(tmp_path, store(s3.url, prefix="in/"))
    url = f"sqlite:///{tmp_path}/jobs.db"
    options: dict[str, Any] = {"object_stores_file": tmp_path / "stores.json", "max_file_bytes": 2500}
    async with asyncio.timeout(200), world(url, keys_file, tmp_path, **options) as here:
        made = await batch_of(here, "s3://inputs/in/7 ä.jsonl", extra_headers={"Idempotency-Key": "one"})
        s3.put("inputs", {"in/7 ä.jsonl": b"{}\n"})  # what changes later changes nothing
        again = await batch_of(here, "s3://inputs/in/7 ä.jsonl", extra_headers={"Idempotency-Key": "one"})
        assert again.id == made.id
        done = await ended(here.client, made.id)
        assert done.status == "completed" and done.request_counts.completed == 7
        answers = await result(here.client, done.output_file_id)
        assert [line["custom_id"] for line in answers] == [f"line-{n}" for n in range(7)]
        file = await here.client.files.retrieve(done.input_file_id)
        assert file.filename == "s3://inputs/in/7 ä.jsonl" and file.purpose == "batch" and file.bytes == len(lines)
        assert (await here.client.files.content(file.id)).content == lines
        bad = await ended(here.client, (await batch_of(here, "s3://inputs/in/bad.jsonl")).id)
        assert bad.status == "failed" and bad.errors.data[0].line == 1
        param = "input_file_id"
        assert await refusal(here, "s3://inputs/out/7.jsonl") == (400, "object_store_not_listed", param)
        assert await refusal(here, "s3://inputs/in/7 ä.jsonl", "team-b") == (400, "object_store_not_listed", param)
        assert await refusal(here, "s3://inputs/in/none") == (400, "object_not_found", param)
        assert await refusal(here, "s3://inputs/in/../out/7.jsonl") == (400, "invalid_value", param)
        assert await refusal(here, "s3://inputs/in/large.jsonl") == (413, "file_too_large", param)
        assert (await refusal(here, "s3://inputs/in/bad.jsonl", endpoint="/v1/nothing"))[2] == "endpoint"
        kept = [file.filename async for file in here.client.files.list(purpose="batch")]
        assert kept == ["s3://inputs/in/bad.jsonl", "s3://inputs/in/7 ä.jsonl"]
        (tmp_path / "stores.json").write_text("{")
        assert await refusal(here, "s3://inputs/in/bad.jsonl") == (503, "object_store_unavailable", param)


@pytest.mark.integration
async def test_a_tenant_without_room_for_a_batch_has_no_object_read_for_it(keys_file: str, tmp_path: Path) -> None:
    """The store does not answer at all: it is not called."""
    listed(tmp_path, store(f"http://127.0.0.1:{reserve_port()}"))
    options: dict[str, Any] = {"object_stores_file": tmp_path / "stores.json", "max_tenant_batches": 1}
    async with asyncio.timeout(100), world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path, **options) as here:
        here.clients["team-a"] = client = here.client.with_options(max_retries=0)
        here.model.open.clear()
        file = await client.files.create(file=("in.jsonl", jsonl(chat(0))), purpose="batch")
        await batch_of(here, file.id)
        assert (await refusal(here, "s3://inputs/a"))[:2] == (429, "too_many_batches")
        here.model.open.set()


@pytest.mark.integration
async def test_without_a_list_there_are_no_objects(keys_file: str, tmp_path: Path) -> None:
    async with asyncio.timeout(100), world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path) as here:
        assert await refusal(here, "s3://inputs/a") == (400, "object_store_not_listed", "input_file_id")


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_a_server_that_checks_signatures_takes_them_and_refuses_others(tmp_path: Path) -> None:
    """A user with a key of its own is made before moto begins to check."""
    with moto(tmp_path / "log", INITIAL_NO_AUTH_ACTION_COUNT="5") as strict:

        def iam(**fields: str) -> ElementTree.Element:
            head = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/iam/aws4_request, "
                    "SignedHeaders=host, Signature=0", "Host": "iam.amazonaws.com"}  # fmt: skip
            body = urlencode({"Version": "2010-05-08", **fields}).encode()
            with urllib.request.urlopen(urllib.request.Request(strict.url, body, head), timeout=30) as response:
                return ElementTree.fromstring(response.read())

        def user() -> tuple[str, str]:
            iam(Action="CreateUser", UserName="reader")
            policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
            iam(Action="PutUserPolicy", UserName="reader", PolicyName="p", PolicyDocument=json.dumps(policy))
            found = {one.tag.rpartition("}")[2]: one.text or "" for one in
                     iam(Action="CreateAccessKey", UserName="reader").iter()}  # fmt: skip
            return found["AccessKeyId"], found["SecretAccessKey"]

        key_id, secret = await asyncio.to_thread(user)
        await asyncio.to_thread(strict.put, "inputs", {"a b/ä+.jsonl": DATA})

        async def got(secret: str) -> bytes:
            own = ObjectStore(tenant="t", bucket="inputs", endpoint=strict.url, region="us-east-1",
                              access_key_id=key_id, secret_access_key=secret)  # fmt: skip
            async with aclosing(ObjectReader(own, ObjectName("inputs", "a b/ä+.jsonl"), 1 << 20).chunks()) as chunks:
                return b"".join([chunk async for chunk in chunks])

        with pytest.raises(ObjectRefused) as refused:
            await got("wrong")
        assert refused.value.code == "object_access_denied"
        assert await got(secret) == DATA
