"""Webhooks reach their receivers signed, guarded and at least once, and end after three days."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from sqlalchemy import Integer, cast, func, update

from slipway_jobs.serving.upload import new_id
from slipway_jobs.states import COMPLETED, FAILED, JOB
from slipway_jobs.store.batch_store import BatchStore, NewBatch
from slipway_jobs.store.database import Database
from slipway_jobs.store.delivery_store import LAST_AFTER_S, Delivery, DeliveryStore, TooManyWebhooks
from slipway_jobs.store.tables import batches, deliveries
from slipway_jobs.telemetry import JobsMetrics
from slipway_jobs.webhooks.deliverer import DELAYS_S, Deliverer, event_body, outcome_of
from slipway_jobs.webhooks.receivers import ReceiverReply, Receivers
from slipway_jobs.webhooks.signing import parse_secrets, secret_of, shown, sign
from slipway_process.network.listed_hosts import ListedHosts
from testkit.until import until_async
from tests.gateway import tenants
from tests.gateway.harness import Upstream, upstream
from tests.gateway.loopback import Loopback
from tests.jobs.world import KEY_A, KEY_B, chat, create, ended, jsonl, seen, store_file, world
from tests.support.address_corpus import BLOCKED_ALWAYS

SECRET, OLD = b"n" * 32, b"o" * 32
HOST = "hooks.test"
DELIVERY = Delivery("batch_1", "team-a", "http://hooks.test/", "batch.completed", 1000.0, 1, 1, 1000.0)


def whsec(*secrets: bytes) -> str:
    return ",".join(f"whsec_{base64.b64encode(one).decode()}" for one in secrets)


class Receiver:
    """Answers with `statuses` in turn, then with 204."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[dict[str, str], bytes]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.got.append((dict(request.headers), await request.read()))
        status = self.statuses.pop(0) if self.statuses else 204
        return web.Response(status=status, headers={"Location": "/elsewhere"} if status in (302, 307) else None)


def unwrap(got: tuple[dict[str, str], bytes], secret: str) -> Any:
    """By OpenAI's client, which knows nothing of this implementation."""
    return openai.OpenAI(api_key="none").webhooks.unwrap(got[1], got[0], secret=secret)


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    opened = Database(url)
    yield opened
    opened.close()


def deliverer(database: Database, *addresses: str) -> Deliverer:
    hosts = ListedHosts((HOST,), loopback=not addresses)
    receivers = Receivers(hosts, Loopback(addresses) if addresses else Loopback())
    return Deliverer(database, DeliveryStore(database), receivers, (SECRET, OLD), JobsMetrics())


async def sent(sender: Deliverer) -> int:
    """How many webhooks were due, once they have been sent."""
    started = await sender.turn()
    await sender.idle()
    return started


async def make(database: Database, served: Upstream | None, name: str = "batch_1", most: int = 9, **more: Any) -> None:
    port = served.url.rpartition(":")[2] if served else "80"
    given = {"tenant": "team-a", "endpoint": "/x", "input_file_id": new_id("file-")} | more
    await store_file(database, given["input_file_id"], given["tenant"])
    new = NewBatch(name, callback_url=f"http://{HOST}:{port}/hook", **given)
    await database.call(BatchStore(database, 100, 1000.0, most).create, new)


async def end(database: Database, status: str = COMPLETED, **values: Any) -> None:
    await database.call(lambda connection: connection.execute(update(batches).values(status=status, **values)))


async def make_due(database: Database) -> None:
    await database.call(lambda connection: connection.execute(update(deliveries).values(next_at=0.0)))


async def row(database: Database) -> dict[str, Any]:
    found = await database.call(DeliveryStore(database).get, "batch_1")
    assert found
    return dict(found)


async def test_a_batch_that_ended_is_announced_once_and_openais_client_verifies_it(database: Database) -> None:
    receiver, sender = Receiver(), deliverer(database)
    async with upstream(receiver.answer) as served:
        await make(database, served)
        assert await sent(sender) == 0 and not receiver.got
        await end(database)
        assert [await sent(sender) for _ in range(3)] == [1, 0, 0]
    [got] = receiver.got
    for secret in (SECRET, OLD):
        event = unwrap(got, shown(secret_of(secret, "team-a")))
        assert (event.type, event.data.id, event.object) == ("batch.completed", "batch_1", "event")
    # Another tenant's secret, or another body.
    with pytest.raises(openai.InvalidWebhookSignatureError):
        unwrap(got, shown(secret_of(SECRET, "team-b")))
    with pytest.raises(openai.InvalidWebhookSignatureError):
        unwrap((got[0], got[1] + b" "), shown(secret_of(SECRET, "team-a")))
    found = await row(database)
    assert (found["state"], found["attempts"], found["status_code"]) == ("delivered", 1, 204)


async def test_an_attempt_that_fails_is_made_again_with_the_same_id_and_body(database: Database) -> None:
    receiver, sender = Receiver(500, 302, 404), deliverer(database)
    async with upstream(receiver.answer) as served:
        await make(database, served)
        await end(database)
        for attempts, status in enumerate((500, 302, 404), 1):
            assert await sent(sender) == 1
            found = await row(database)
            assert (found["state"], found["attempts"], found["status_code"]) == ("pending", attempts, status)
            assert await sent(sender) == 0  # not before its time
            await make_due(database)
        assert await sent(sender) == 1
    assert len({(head["webhook-id"], body) for head, body in receiver.got}) == 1
    assert {request.path for request in served.seen} == {"/hook"}  # no redirect was followed
    assert (await row(database))["state"] == "delivered"


async def test_a_process_that_died_while_it_sent_leaves_the_webhook_to_another_one(database: Database) -> None:
    store, receiver = DeliveryStore(database), Receiver()
    async with upstream(receiver.answer) as served:
        await make(database, served)
        await end(database)
        await database.call(store.announce)
        [stale] = await database.call(store.claim, 8)
        assert await database.call(store.claim, 8) == []
        await make_due(database)  # its lease has ended
        assert await sent(deliverer(database)) == 1
        # It was paused, and finds that the other one was first.
        assert not await database.call(store.record, stale, outcome_of(stale, ReceiverReply(500)))
    assert (await row(database))["state"] == "delivered"


async def test_many_webhooks_of_one_tenant_leave_the_others_their_turn(database: Database) -> None:
    """Each attempt at a receiver that hangs takes 15 s: with those of one tenant first, others would wait for all."""
    for n in range(20):
        await make(database, None, f"batch_{n:02}", 99)
    await make(database, None, "batch_98", tenant="team-b")
    await make(database, None, "batch_99", tenant="team-b")
    await end(database)
    store = DeliveryStore(database)
    await database.call(store.announce)
    in_order = update(deliveries).values(next_at=cast(func.substr(deliveries.c.batch_id, 7), Integer))
    await database.call(lambda connection: connection.execute(in_order))
    turns = [[one.tenant for one in await database.call(store.claim, 3)] for _ in range(3)]
    assert [turn.count("team-b") for turn in turns] == [1, 1, 0] and [len(turn) for turn in turns] == [3, 3, 3]


async def _has(receiver: Receiver) -> bool:
    return bool(receiver.got)


@pytest.mark.finding("F12")
async def test_receivers_of_one_tenant_that_hang_leave_room_for_the_next_tenant(database: Database) -> None:
    """Eight of them took all places for 15 s."""
    hang, receiver, sender = asyncio.Event(), Receiver(), deliverer(database)

    async def hanging(request: web.Request) -> web.StreamResponse:
        await hang.wait()
        return web.Response(status=204)

    async with upstream(hanging) as away, upstream(receiver.answer) as served:
        for n in range(20):
            await make(database, away, f"batch_{n:02}", 99)
        await end(database)
        assert [await sender.turn() for _ in range(3)] == [6, 0, 0]
        for tenant in ("team-b", "team-c"):
            await make(database, served, f"batch_{tenant}", tenant=tenant)
            await end(database)
            assert await sender.turn() == 1
            await until_async(lambda: _has(receiver), "it is sent")
            receiver.got.clear()
        hang.set()
        await sender.idle()


async def test_a_webhook_that_cannot_be_made_ends_and_the_others_go_on(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """As a row of another release may be; the loop of all tenants' webhooks would end with it."""
    receiver = Receiver()
    async with upstream(receiver.answer) as served:
        await make(database, served)
        await make(database, served, "batch_2")
        await end(database)
        await database.call(DeliveryStore(database).announce)
        broken = update(deliveries).where(deliveries.c.batch_id == "batch_1").values(event_at=None)
        await database.call(lambda connection: connection.execute(broken))
        assert await sent(deliverer(database)) == 2
    assert (await row(database))["state"] == FAILED and len(receiver.got) == 1
    assert "failed inside of the process" in caplog.text


async def test_gone_ends_a_webhook_and_so_do_three_days(database: Database) -> None:
    store, receiver = DeliveryStore(database), Receiver(410)
    async with upstream(receiver.answer) as served:
        await make(database, served)
        await end(database)
        assert await sent(deliverer(database)) == 1
    assert (await row(database))["state"] == "failed"
    late = update(deliveries).values(state="pending", next_at=0.0, event_at=deliveries.c.event_at - LAST_AFTER_S)
    await database.call(lambda connection: connection.execute(late))
    [last] = await database.call(store.claim, 8)
    assert await database.call(store.record, last, outcome_of(last, ReceiverReply(500)))
    assert (await row(database))["state"] == "failed"


def test_all_attempts_are_within_three_days() -> None:
    assert sum(DELAYS_S) <= LAST_AFTER_S
    states = [outcome_of(replace(DELIVERY, attempts=n + 1), ReceiverReply(500)).state for n in range(len(DELAYS_S) + 1)]
    assert states == ["pending"] * len(DELAYS_S) + ["failed"]
    assert outcome_of(DELIVERY, ReceiverReply(503, None, 900.0)).wait_s == 900.0
    assert outcome_of(DELIVERY, ReceiverReply(503, None, 99_999.0)).wait_s == 3600.0


@pytest.mark.parametrize("address", BLOCKED_ALWAYS)
async def test_a_listed_host_at_a_reserved_address_gets_nothing(address: str) -> None:
    async with upstream(Receiver().answer) as served:
        receivers = Receivers(ListedHosts((HOST,)), Loopback((address.partition("%")[0],)))
        reply = await receivers.post(f"http://{HOST}:{served.url.rpartition(':')[2]}/", b"{}", {})
    assert reply.status is None and reply.error == "Its address is reserved." and not served.seen


@pytest.mark.parametrize(
    "url", ["http://other.test/", "ftp://hooks.test/", "http://a:b@hooks.test/", "http://hooks.test:x/", "x", "http://"]
)
def test_urls_of_other_hosts_and_with_credentials_are_not_called(url: str) -> None:
    assert not Receivers(ListedHosts((HOST,))).may_call(url)
    assert not Receivers(ListedHosts()).may_call(f"http://{HOST}/")


@pytest.mark.parametrize(
    ("kind", "status", "failed", "event"),
    [
        ("batch", COMPLETED, 1, "batch.completed"),
        ("inputs", "cancelled", 1, "batch.cancelled"),
        (JOB, COMPLETED, 0, "job.completed"),
        (JOB, COMPLETED, 1, "job.failed"),
        (JOB, "expired", 1, "job.expired"),
    ],
)
async def test_the_event_names_what_ended_and_how(
    database: Database, kind: str, status: str, failed: int, event: str
) -> None:
    await make(database, None, kind=kind)
    await end(database, status, failed=failed)
    await database.call(DeliveryStore(database).announce)
    assert (await row(database))["event"] == event


async def test_webhooks_of_a_tenant_that_are_not_delivered_are_bounded(database: Database) -> None:
    await make(database, None, most=1)
    with pytest.raises(TooManyWebhooks):
        await make(database, None, "batch_2", most=1)
    await database.call(lambda connection: connection.execute(update(deliveries).values(state=FAILED)))
    await make(database, None, "batch_2", most=1)


@pytest.mark.parametrize("text", ["x", "whsec_", "whsec_####", whsec(b"short"), whsec(b"x" * 65), whsec(SECRET) + ",x"])
def test_a_secret_that_is_none_is_refused(text: str) -> None:
    assert parse_secrets("") == () and parse_secrets(whsec(SECRET, OLD)) == (SECRET, OLD)
    with pytest.raises(ValueError, match="whsec_"):
        parse_secrets(text)


def test_the_body_is_the_same_at_each_attempt_and_the_signature_has_its_time() -> None:
    later = replace(DELIVERY, attempts=3, now_s=5000.0)
    assert event_body(DELIVERY) == event_body(later)
    first, second = (sign([SECRET], one.event_id, int(one.now_s), event_body(one)) for one in (DELIVERY, later))
    assert first["webhook-id"] == second["webhook-id"] and first["webhook-signature"] != second["webhook-signature"]


@pytest.mark.integration
async def test_a_callback_url_is_taken_for_listed_hosts_and_its_state_is_shown(keys_file: str, tmp_path: Path) -> None:
    options = {"webhook_hosts": HOST, "webhook_secret": whsec(SECRET)}
    async with world(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path, **options) as here:
        good = {"callback_url": f"https://{HOST}/hook"}
        batch = await create(here.client, jsonl(chat(1)), extra_body=good)
        job = {"endpoint": "/v1/chat/completions", "body": chat(1)["body"]}
        head = tenants.bearer(KEY_A)
        for path, body in (("/v1/jobs", job), ("/api/v1/batch", {"model": "chat", "inputs": [1]})):
            for bad in ("http://other.test/", 7, "a\0", "x" * 3000, ""):
                answer = await here.edge.post(body | {"callback_url": bad}, path, headers=head)
                assert (answer.status, (await answer.json())["error"]["param"]) == (400, "callback_url"), bad
            made = await (await here.edge.post(body | good, path, headers=head)).json()
            shown_at = await seen(here, f"{path}/{made.get('job_id') or made['batch_id']}", "completed")
            assert shown_at["webhook"]["url"] == good["callback_url"]
        # Nothing of this name is there: the attempt fails, and is shown.
        found = (await ended(here.client, batch.id)).model_extra["webhook"]
        assert found["status"] in ("waiting", "pending") and found["url"] == good["callback_url"]
        secrets = []
        for key in (KEY_A, KEY_B):
            answer = await here.edge.client.get(f"{here.edge.url}/v1/jobs/webhook_secret", headers=tenants.bearer(key))
            secrets.append(json.loads(await answer.text())["secret"])
        assert secrets == [shown(secret_of(SECRET, name)) for name in ("team-a", "team-b")]
