"""Conversations for any engine: OpenAI's own client at a gateway with a jobs process, both killed at times."""

import asyncio
import json
import signal
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

from devcluster.ports import reserve_port
from slipway_contracts.conversations import TURNS_PATH
from slipway_contracts.headers import JOBS_PASS, JOBS_TENANT
from slipway_contracts.passes import TO_JOBS, PassKeys
from slipway_jobs.serving.turns_api import MAX_CONTEXTS
from testkit.until import until_async
from tests.gateway.harness import upstream
from tests.jobs.responses_engine import Talks, served_here, talks
from tests.jobs.world import KEY_A, settings
from tests.process.test_sealing import keys_file as sealing_keys

pytestmark = pytest.mark.integration
AS_A = {"Authorization": f"Bearer {KEY_A}"}


async def say(here: Talks, text: str, *, streams: bool = False, **fields: Any) -> Any:
    """The response to one turn, whole or by a stream."""
    given = {"model": "chat", "input": text} | fields
    if not streams:
        return await here.client.responses.create(**given)
    async with here.client.responses.stream(**given) as stream:
        async for _ in stream:
            pass
        return await stream.get_final_response()


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/jobs.db"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_chain_of_responses_goes_on_where_the_client_left_it(
    keys_file: str, tmp_path: Path, streams: bool
) -> None:
    async with talks(url_of(tmp_path), keys_file, tmp_path) as here:
        first = await say(here, "Hello", streams=streams, instructions="Be brief.")
        assert (first.store, first.previous_response_id) == (True, None)
        second = await say(here, "And now?", streams=streams, previous_response_id=first.id)
        third = await say(here, "And then?", streams=streams, previous_response_id=second.id)
        assert (third.store, third.previous_response_id) == (True, second.id)
        # What the engine got: all that the client saw, in order, and the same bytes as before at the beginning.
        before, now = here.engine.seen[1:]
        assert now[: len(before)] == before
        texts = [json.loads(item)["content"][0]["text"] for item in now]
        assert texts == ["Hello", first.output_text, "And now?", second.output_text, "And then?"]
        assert "instructions" not in here.engine.bodies[-1]  # they are not carried over
        # A branch.
        other = await say(here, "Or else?", previous_response_id=first.id)
        assert other.output_text != third.output_text
        stored = await here.client.responses.retrieve(second.id)
        assert (stored.output_text, stored.previous_response_id, stored.model) == (second.output_text, first.id, "chat")
        items = await here.client.responses.input_items.list(second.id)
        assert [item.content[0].text for item in items.data] == ["And now?"]
        await here.client.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            await here.client.responses.retrieve(second.id)
        with pytest.raises(openai.NotFoundError) as refused:
            await say(here, "Hm?", streams=streams, previous_response_id=third.id)
        assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
        assert here.turns("stored") == 4


async def test_conversations_and_their_items_are_openais(keys_file: str, tmp_path: Path) -> None:
    async with talks(url_of(tmp_path), keys_file, tmp_path) as here:
        calls = here.client.conversations
        made = await calls.create(items=[{"role": "user", "content": "I am Ada."}], metadata={"topic": "names"})
        answer = await say(here, "Who am I?", conversation=made.id)
        assert answer.conversation.id == made.id
        streamed = await say(here, "And you?", streams=True, conversation=made.id)
        listed = [item async for item in calls.items.list(made.id, order="asc", limit=2)]
        texts = [item.content[0].text for item in listed]
        assert texts == ["I am Ada.", "Who am I?", answer.output_text, "And you?", streamed.output_text]
        assert (await calls.items.retrieve(listed[2].id, conversation_id=made.id)).role == "assistant"
        added = await calls.items.create(made.id, items=[{"role": "user", "content": "Later."}])
        assert added.data[0].content[0].text == "Later."
        await calls.items.delete(listed[0].id, conversation_id=made.id)
        await say(here, "Once more?", conversation={"id": made.id})
        assert [json.loads(item)["content"][0]["text"] for item in here.engine.seen[-1]] == [
            "Who am I?", answer.output_text, "And you?", streamed.output_text, "Later.", "Once more?",
        ]  # fmt: skip
        assert (await calls.update(made.id, metadata={"topic": "tea"})).metadata == {"topic": "tea"}
        assert (await calls.retrieve(made.id)).metadata == {"topic": "tea"}
        # The object of a response may go, and its items stay in the conversation.
        await here.client.responses.delete(answer.id)
        assert len([item async for item in calls.items.list(made.id)]) == 7
        assert (await calls.delete(made.id)).deleted
        for gone in (calls.retrieve(made.id), calls.items.list(made.id), say(here, "Hi?", conversation=made.id)):
            with pytest.raises(openai.NotFoundError, match="not found"):
                await gone


async def test_another_tenant_gets_404_for_each_id(keys_file: str, tmp_path: Path) -> None:
    async with talks(url_of(tmp_path), keys_file, tmp_path) as here:
        first = await say(here, "A secret")
        made = await here.client.conversations.create(items=[{"role": "user", "content": "A secret"}])
        other = here.clients["team-b"]
        for call in (
            other.responses.retrieve(first.id),
            other.responses.delete(first.id),
            other.responses.input_items.list(first.id),
            other.responses.create(model="chat", input="?", previous_response_id=first.id),
            other.responses.create(model="chat", input="?", conversation=made.id),
            other.conversations.retrieve(made.id),
            other.conversations.delete(made.id),
            other.conversations.items.create(made.id, items=[{"role": "user", "content": "?"}]),
        ):
            with pytest.raises(openai.NotFoundError) as refused:
                await call
            assert "secret" not in str(refused.value)
        assert len(here.engine.seen) == 1
        assert (await here.client.responses.retrieve(first.id)).id == first.id
        # A client cannot reach what gateways call.
        for path in ("/internal/conversations/context", "/internal/conversations/turns"):
            answer = await here.edge.client.post(here.edge.url + path, json={}, headers=AS_A)
            assert answer.status == 404


async def test_what_is_not_to_be_stored_is_not_and_requests_without_storage_pass_as_before(
    keys_file: str, tmp_path: Path
) -> None:
    async with talks(url_of(tmp_path), keys_file, tmp_path) as here:
        answer = await say(here, "Hello", store=False)
        assert here.engine.bodies[-1]["input"] == "Hello"  # byte for byte as the client sent it
        assert answer.store is False
        with pytest.raises(openai.NotFoundError):
            await here.client.responses.retrieve(answer.id)
        # A turn that continues something may be unstored itself.
        kept = await say(here, "Hello")
        unkept = await say(here, "And now?", previous_response_id=kept.id, store=False)
        assert (unkept.store, len(here.engine.seen[-1])) == (False, 3)
        with pytest.raises(openai.NotFoundError):
            await say(here, "?", previous_response_id=unkept.id)


async def test_an_answer_whose_write_is_not_made_in_time_says_so(keys_file: str, tmp_path: Path) -> None:
    async with talks(url_of(tmp_path), keys_file, tmp_path, apart=True) as here:
        first = await say(here, "Hello")
        process = here.process.process
        assert process
        process.send_signal(signal.SIGSTOP)
        try:
            began_s = asyncio.get_running_loop().time()
            answers = await asyncio.gather(*(say(here, "Are you there?", streams=streams) for streams in (True, False)))
            took_s = asyncio.get_running_loop().time() - began_s
        finally:
            process.send_signal(signal.SIGCONT)
        assert [(answer.store, answer.output_text != "") for answer in answers] == [(False, True)] * 2
        assert 1.9 < took_s < 20, "the process stands still until then"
        assert here.turns("away") == 2
        await here.process.end()
        with pytest.raises(openai.InternalServerError) as refused:
            await say(here, "And now?", previous_response_id=first.id)
        assert (refused.value.status_code, refused.value.code) == (503, "conversations_unavailable")


async def test_a_turn_whose_client_learned_that_it_is_not_stored_is_not_stored_later(
    keys_file: str, tmp_path: Path
) -> None:
    """Another process holds the lock of the database until the gateway has given the write up."""
    async with talks(url_of(tmp_path), keys_file, tmp_path) as here:
        made = await here.client.conversations.create()
        await say(here, "Hello", conversation=made.id)
        other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, check_same_thread=False)

        def lock(response: dict[str, Any]) -> dict[str, Any]:
            other.execute("BEGIN IMMEDIATE")
            return response

        here.engine.reshapes = lock
        try:
            answer = await say(here, "Are you there?", conversation=made.id)
        finally:
            other.execute("ROLLBACK")
            other.close()
        assert answer.store is False
        await asyncio.sleep(0.5)
        listed = [item async for item in here.client.conversations.items.list(made.id, order="asc", limit=100)]
        assert len(listed) == 2


async def test_bodies_of_turns_that_arrive_have_places(keys_file: str, tmp_path: Path) -> None:
    port, never = reserve_port(), asyncio.Event()
    given = settings(url_of(tmp_path), keys_file, "http://127.0.0.1:1", port=port, conversations="on")

    async def trickling() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    async with served_here(given), aiohttp.ClientSession() as session:
        signed = PassKeys(keys_file).make(TO_JOBS, "team-a", "POST", TURNS_PATH)
        sent: dict[str, Any] = {"headers": {JOBS_TENANT: "team-a", JOBS_PASS: signed}}
        url = f"http://127.0.0.1:{port}{TURNS_PATH}"
        slow = [asyncio.create_task(session.post(url, data=trickling(), **sent)) for _ in range(MAX_CONTEXTS)]
        try:
            ended, _ = await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            assert {task.result().status for task in ended} == {429}
        finally:
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)


async def test_a_stream_is_stored_once_however_often_its_engine_ends_it(keys_file: str, tmp_path: Path) -> None:
    async with talks(url_of(tmp_path), keys_file, tmp_path) as here:
        made = await here.client.conversations.create()

        async def ends_twice(request: web.Request) -> web.StreamResponse:
            out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await out.prepare(request)
            for n in range(2):
                response = {"id": f"resp_{n}", "object": "response", "status": "completed", "output": []}
                event = {"type": "response.completed", "response": response}
                await out.write(f"data: {json.dumps(event)}\n\n".encode())
            return out

        async with upstream(ends_twice) as strange:
            here.edge.route(("r1", 100, [strange.url]))
            body = {"model": "chat", "input": "?", "stream": True, "conversation": made.id}
            answer = await here.edge.post(body, "/v1/responses", headers=AS_A)
            await answer.read()
        listed = [item async for item in here.client.conversations.items.list(made.id, order="asc", limit=100)]
        assert len(listed) == 1


async def test_a_conversation_stays_with_its_revision_while_that_serves_and_says_when_it_moved(
    keys_file: str, tmp_path: Path
) -> None:
    async with talks(url_of(tmp_path), keys_file, tmp_path, engines=2) as here:
        first = await say(here, "Hello")
        # Nearly all new requests go to the other revision: the conversation stays.
        here.edge.route(("r1", 1, [here.urls[0]]), ("r2", 99, [here.urls[1]]))
        second = await say(here, "And now?", previous_response_id=first.id)
        assert (len(here.engines[0].seen), second.metadata) == (2, {})
        here.edge.route(("r1", 0, [here.urls[0]]), ("r2", 100, [here.urls[1]]))
        third = await say(here, "And then?", streams=True, previous_response_id=second.id, metadata={"a": "b"})
        assert (len(here.engines[1].seen[-1]), third.store) == (5, True)
        assert third.metadata == {"a": "b", "slipway_moved_from": "default/chat/r1"}
        fourth = await say(here, "And?", previous_response_id=third.id)
        assert fourth.metadata == {}


async def test_a_context_that_does_not_fit_is_refused_or_loses_its_oldest_turns(keys_file: str, tmp_path: Path) -> None:
    async with talks(url_of(tmp_path), keys_file, tmp_path) as here:
        answer = await say(here, "turn 0")
        for n in range(1, 6):
            answer = await say(here, f"turn {n}", previous_response_id=answer.id)
        here.engine.context = 8
        with pytest.raises(openai.BadRequestError) as refused:
            await say(here, "more", previous_response_id=answer.id)
        assert refused.value.code == "context_length_exceeded"
        for streams in (False, True):
            cut = await say(here, "more", streams=streams, previous_response_id=answer.id, truncation="auto")
            sent = [json.loads(item) for item in here.engine.seen[-1]]
            assert sent[0]["role"] == "user"
            assert sent[-1]["content"][0]["text"] == "more"
            assert len(sent) <= 8
            assert cut.truncation == "auto"
            assert cut.metadata["slipway_dropped_items"] == str(13 - len(sent))
        # Nothing was lost in the store.
        here.engine.context = 1000
        await say(here, "all", previous_response_id=answer.id)
        assert len(here.engine.seen[-1]) == 13


async def test_limits_count_the_rebuilt_prompt(keys_file: str, tmp_path: Path) -> None:
    async with talks(url_of(tmp_path), keys_file, tmp_path) as here:
        answer = await say(here, "x" * 8000)
        estimated: list[int] = []
        prepare = here.edge.admission.prepare

        def look(*given: Any) -> Any:
            prepared = prepare(*given)
            estimated.append(prepared.meter.estimate.input_tokens)
            return prepared

        here.edge.admission.prepare = look  # type: ignore[method-assign]
        await say(here, "short", previous_response_id=answer.id)
        assert estimated[0] > 8000 // 4


async def test_strange_engines_break_nothing(keys_file: str, tmp_path: Path) -> None:
    async with talks(url_of(tmp_path), keys_file, tmp_path) as here:
        first = await say(here, "Hello")
        # The same id for another response: it is not stored, and the first one stays as it was.
        here.engine.reshapes = lambda response: response | {"id": first.id}
        again = await say(here, "Other")
        assert (again.store, here.turns("refused")) == (False, 1)
        assert (await here.client.responses.retrieve(first.id)).output_text == first.output_text
        for shape in (
            {"id": "a/b"}, {"id": None}, {"id": 7}, {"output": [7]}, {"output": [{"type": 7}]}, {"status": "what"},
        ):  # fmt: skip
            here.engine.reshapes = lambda response, shape=shape: response | shape  # type: ignore[misc]
            answer = await here.edge.post({"model": "chat", "input": "?"}, "/v1/responses", headers=AS_A)
            assert answer.status == 200
            assert (await answer.json())["store"] is False
        # What is no response passes as it is, and counts as a turn that is not stored.
        before = here.turns("unstorable")
        here.engine.reshapes = lambda response: [response]  # type: ignore[assignment,return-value]
        answer = await here.edge.post({"model": "chat", "input": "?"}, "/v1/responses", headers=AS_A)
        assert answer.status == 200 and isinstance(await answer.json(), list)
        assert here.turns("unstorable") == before + 1
        here.engine.reshapes = dict
        # A stream that breaks off is not stored, and ends with an error.
        here.engine.breaks = True
        with pytest.raises(openai.APIError):
            await say(here, "Hello?", streams=True)
        assert here.turns("stored") == 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": 7}, "previous_response_id"),
    ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id"),
    ({"conversation": {"id": 7}}, "conversation"),
    ({"conversation": []}, "conversation"),
    ({"store": "yes"}, "store"),
    ({"truncation": "some"}, "truncation"),
    ({"input": None}, "input"),
    ({"input": 7}, "input"),
    ({"input": [7]}, "input[0]"),
    ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
    ({"input": [{"role": "user", "content": "x", "id": "a b"}]}, "input[0].id"),
]


async def test_bad_input_is_refused_by_the_name_of_its_field(keys_file: str, tmp_path: Path) -> None:
    async with talks(url_of(tmp_path), keys_file, tmp_path) as here:
        for fields, param in BAD:
            answer = await here.edge.post({"model": "chat", "input": "x"} | fields, "/v1/responses", headers=AS_A)
            error = (await answer.json())["error"]
            assert (answer.status, error["param"]) == (400, param), error
        for method, path, body, param in BAD_CALLS:
            answer = await here.edge.client.request(method, here.edge.url + path, json=body, headers=AS_A)
            error = (await answer.json())["error"]
            assert (answer.status // 100, error["param"]) == (4, param), (path, error)
        assert not here.engine.seen


BAD_CALLS: list[tuple[str, str, Any, str | None]] = [
    ("POST", "/v1/conversations", {"metadata": {"a": 7}}, "metadata"),
    ("POST", "/v1/conversations", {"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ("POST", "/v1/conversations", {"items": "x"}, "items"),
    ("POST", "/v1/conversations", {"items": [{"role": "user", "content": "x"}] * 21}, "items"),
    ("POST", "/v1/conversations", {"items": [{"role": "user"}]}, "items[0].content"),
    ("POST", "/v1/conversations", {"what": 1}, "what"),
    ("POST", "/v1/conversations/conv_1/items", {}, "items"),
    ("POST", "/v1/conversations/conv_1", {}, "metadata"),
    ("GET", "/v1/conversations/conv_1/items?limit=x", None, "limit"),
    ("GET", "/v1/conversations/conv_1/items?order=up", None, "order"),
    ("GET", "/v1/conversations/conv_1/items?after=%00", None, "after"),
    ("GET", "/v1/conversations/a%20b", None, "id"),
    ("GET", "/v1/conversations/conv_1", None, "id"),
    ("DELETE", "/v1/conversations/conv_1/items/msg_1", None, "item_id"),
    ("GET", "/v1/responses/resp_1", None, "response_id"),
    ("GET", "/v1/responses/resp_1?stream=true", None, "stream"),
    ("GET", "/v1/responses/resp_1/input_items", None, "response_id"),
]


async def test_after_kills_each_item_is_stored_once_and_the_context_is_what_the_client_saw(
    keys_file: str, tmp_path: Path
) -> None:
    """The jobs process is killed before a turn and in the middle of one; a turn without an answer is sent again."""
    async with talks(url_of(tmp_path), keys_file, tmp_path, apart=True) as here:
        made = await here.client.conversations.create()
        saw: list[str] = []
        for n in range(8):
            key = {"conversation": made.id, "streams": n % 2 == 1, "extra_headers": {"Idempotency-Key": f"turn-{n}"}}
            if n in (2, 5):
                # The client loses the answer to its first attempt, which is stored already, and sends it again.
                assert (await say(here, f"turn {n}", **key)).store
            if n == 3:
                await here.process.end()
                await here.process.start()
            if n == 6:
                here.engine.pause_s = 0.05
                attempt = asyncio.create_task(say(here, f"turn {n}", **(key | {"streams": True})))
                await until_async(lambda: len(here.engine.seen) > 8, "the model answers")
                await here.process.end()
                assert (await attempt).store is False
                await here.process.start()
                here.engine.pause_s = 0.0
            answer = await say(here, f"turn {n}", **key)
            assert answer.store
            # The engine's answer depends on its whole context.
            assert [json.loads(item)["content"][0]["text"] for item in here.engine.seen[-1]] == [*saw, f"turn {n}"]
            saw += [f"turn {n}", answer.output_text]
        listed = [item async for item in here.client.conversations.items.list(made.id, order="asc", limit=100)]
        assert [item.content[0].text for item in listed] == saw
        assert len({item.id for item in listed}) == len(saw)


async def test_what_a_lost_key_sealed_is_an_error_by_name_and_new_turns_are_stored(
    keys_file: str, tmp_path: Path
) -> None:
    url = url_of(tmp_path)
    async with talks(url, keys_file, tmp_path, sealing_keys_file=sealing_keys(tmp_path / "first", "k1")) as here:
        first = await say(here, "Hello")
        made = await here.client.conversations.create(items=[{"role": "user", "content": "Hello"}])
    async with talks(url, keys_file, tmp_path, sealing_keys_file=sealing_keys(tmp_path / "other", "k2")) as here:
        for named in ({"previous_response_id": first.id}, {"conversation": made.id}):
            with pytest.raises(openai.InternalServerError, match="k1") as refused:
                await say(here, "Again", **named)
            assert refused.value.code == "sealing_key_lost"
        assert not here.engine.seen, "no model gets a part of a context"
        with pytest.raises(openai.InternalServerError) as refused:
            await here.client.responses.retrieve(first.id)
        assert refused.value.code == "sealing_key_lost"
        await here.client.responses.delete(first.id)
        await here.client.conversations.delete(made.id)
        assert (await say(here, "New")).store


async def test_without_the_flag_nothing_is_stored_and_paths_are_unknown(keys_file: str, tmp_path: Path) -> None:
    off = {"conversations": False}
    async with talks(url_of(tmp_path), keys_file, tmp_path, gateway_changes=off) as here:
        answer = await say(here, "Hello", store=False)
        assert (answer.store, here.engine.bodies[-1]["input"]) == (False, "Hello")
        for call in (here.client.responses.retrieve("resp_1"), here.client.conversations.create()):
            with pytest.raises(openai.APIStatusError) as refused:
                await call
            assert refused.value.code == "unknown_url"
