"""Streams by WebSocket and gRPC that are resumed by their ids: of the client that began them, and of no other one."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slipway_gateway.token_streams.events import TokenEvent
from slipway_gateway.token_streams.marks import DECODE, ENCODE, MAX_MARKS, EventMarks, RememberedStream
from tests.server.http.inprocess import InProcess, model_of

from .harness import Gateway, gateway
from .tenants import PEPPER, make_key, tenant
from .token_streams import code_of, receive, send, socket_of, text_of, until_last

A, B = make_key("aaaaaa"), make_key("bbbbbb")
REQUEST = {"model": "chat", "prompt": "In the beginning", "max_tokens": 40}


@contextlib.asynccontextmanager
async def served(**changes: Any) -> AsyncIterator[tuple[InProcess, Gateway]]:
    """The HTTP half of a real server, without replay buffers, and a gateway with two tenants."""
    listed = [tenant("team-a", A), tenant("team-b", B)]
    async with InProcess(model_of()) as pod, gateway(listed, PEPPER, **changes) as gate:
        pod.engine.tokens = tuple(range(5, 45))
        gate.route(("v1", 100, [pod.url]))
        yield pod, gate


async def charged(gate: Gateway) -> list[tuple[str, int, int, int]]:
    """What the ledger has of each tenant: responses, prompt and output tokens."""
    await gate.ledger.flush()
    _, rows = await gate.ledger.usage(gate.ledger.hour - 1, gate.ledger.hour + 1, "")
    return [(row["tenant"], row["requests"], row["input_tokens"], row["output_tokens"]) for row in rows]


async def test_a_stream_goes_on_at_any_position_on_another_connection_and_is_charged_once() -> None:
    async with served() as (pod, gate):
        async with socket_of(gate, key=A) as socket:
            await send(socket, REQUEST | {"id": "r"})
            whole = await until_last(socket)
        positions = [0, *(message["position"] for message in whole[:-1])]
        async with socket_of(gate, key=A) as socket:
            for index in (0, 1, 17, len(positions) - 1):
                await send(socket, {"type": "resume", "id": "r", "from": positions[index]})
                assert await until_last(socket) == whole[index:]
            await send(socket, {"type": "resume", "id": "r", "from": 9_999})
            assert code_of(await receive(socket)) == (400, "invalid_position")
        assert len(pod.engine.requests) == 1, "all of its tokens are known: no engine computes them again"
        assert await charged(gate) == [("team-a", 1, 4, 40)]


async def test_a_stream_whose_connection_breaks_goes_on_where_the_client_lost_it() -> None:
    async with served() as (_, gate):
        async with socket_of(gate, key=A) as socket:
            await send(socket, REQUEST | {"id": "r"})
            whole = await until_last(socket)
        charges = await charged(gate)
        for seen in (1, 7, 23):
            async with socket_of(gate, key=A) as socket:
                await send(socket, REQUEST | {"id": f"cut-{seen}"})
                got = [await receive(socket) for _ in range(seen)]
                socket.transport.abort()
            async with socket_of(gate, key=A) as socket:
                await send(socket, {"type": "resume", "id": f"cut-{seen}", "from": got[-1]["position"]})
                got += await until_last(socket)
            assert text_of(got) == text_of(whole) and got[-1]["usage"] == whole[-1]["usage"]
        [(_, requests, prompts, tokens)] = await charged(gate)
        [(_, _, prompt, _)] = charges
        assert (requests, prompts, tokens) == (4, 4 * prompt, 4 * 40), "each stream is charged once, whole"


async def test_another_gateway_goes_on_by_the_id_of_the_last_event() -> None:
    async with served() as (pod, one), gateway([tenant("team-a", A)], PEPPER) as two:
        two.route(("v1", 100, [pod.url]))
        async with socket_of(one, key=A) as socket:
            await send(socket, REQUEST | {"id": "r"})
            whole = await until_last(socket)
        async with socket_of(two, key=A) as socket:
            await send(socket, {"type": "resume", "id": "r", "from": 3})
            assert code_of(await receive(socket)) == (404, "stream_not_found")
            await send(socket, REQUEST | {"id": "r", "last_event_id": whole[9]["event_id"]})
            assert text_of(await until_last(socket)) == text_of(whole[10:])
            await send(socket, {"type": "resume", "id": "r", "from": whole[19]["position"]})
            assert text_of(await until_last(socket)) == text_of(whole[20:]), "it remembers the stream now"
            await send(socket, REQUEST | {"id": "r", "last_event_id": "17"})
            assert code_of(await receive(socket)) == (400, "invalid_last_event_id")
            await send(socket, REQUEST | {"id": "r", "prompt": "other", "last_event_id": whole[9]["event_id"]})
            await until_last(socket)


async def test_a_stream_of_another_tenant_is_unknown_a_thousand_times() -> None:
    async with served(websocket_messages_per_second=5000) as (pod, gate):
        async with socket_of(gate, key=A) as socket:
            await send(socket, REQUEST | {"id": "secret"})
            await until_last(socket)
        before = len(pod.engine.requests)
        async with socket_of(gate, key=B) as socket:
            answers = set()
            for number in range(1000):
                await send(socket, {"type": "resume", "id": "secret", "from": number % 50})
                message = await receive(socket)
                answers.add((*code_of(message), message["error"]["message"]))
            await send(socket, {"type": "resume", "id": "invented", "from": 0})
            message = await receive(socket)
            assert answers == {(*code_of(message), message["error"]["message"])}, "as for an id that no client has"
        assert len(pod.engine.requests) == before


async def test_a_resume_takes_over_a_stream_that_runs_and_a_cancelled_one_is_gone() -> None:
    async with served() as (_pod, gate):
        async with socket_of(gate, key=A) as first, socket_of(gate, key=A) as second:
            await send(first, REQUEST | {"id": "r"})
            got = [await receive(first) for _ in range(5)]
            await send(second, {"type": "resume", "id": "r", "from": got[-1]["position"]})
            got += await until_last(second)
            assert len(got) == 41
            last = (await until_last(first))[-1]
            assert last["type"] == "done" or code_of(last) == (409, "taken_over")
        async with socket_of(gate, key=A) as socket:
            await send(socket, REQUEST | {"id": "c"})
            await receive(socket)
            await send(socket, {"type": "cancel", "id": "c"})
            last = (await until_last(socket))[-1]
            if last["type"] == "error":
                await send(socket, {"type": "resume", "id": "c", "from": 1})
                assert code_of(await receive(socket)) == (404, "stream_not_found")


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2**32 - 1)), max_size=60))
def test_marks_find_each_event_and_survive_being_kept(events: list[tuple[int, int]]) -> None:
    ids = {position: f"r%2F.1-2-{'a' * 32}.{position}.{check:08x}.0b1c" for position, check in events}
    marks = EventMarks(ids.values())
    kept = DECODE(ENCODE(RememberedStream.of(b"{}", marks))).to_marks()
    for position in range(1, 201):
        assert kept.event_id(position) == ids.get(position, "")
        assert bool(kept.up_to(position).event_id(position)) == (position in ids)
    assert bool(kept.event_id(0)) == bool(ids)


_OTHER_CHECKSUMS = ("1.zzzzzzzz", "1.ffffffffffffffff", "1.-5", "1. 0_0")


def test_marks_are_bounded_and_ids_of_other_forms_are_left_out() -> None:
    for mark in ("", "17", "b.c", f"{10**12}.00000000", f"{'9' * 5000}.00000000", "²." + "0" * 8, *_OTHER_CHECKSUMS):
        assert not EventMarks([f"r.s.{mark}.h"]) and not TokenEvent(f"r.s.{mark}.h").position
    assert TokenEvent("r.s.17.00000000.h").position == 17 and not TokenEvent("").position
    marks = EventMarks()
    for position in range(3 * MAX_MARKS):
        marks.add(f"r.s.{position}.00000000.h")
    assert not marks.event_id(5) and marks.event_id(3 * MAX_MARKS - 1)
    assert len(ENCODE(RememberedStream.of(b"", marks))) < 11 * MAX_MARKS


async def test_one_client_pushes_out_its_own_streams() -> None:
    async with served(max_remembered_bytes=40_000) as (_, gate):
        async with socket_of(gate, key=B) as socket:
            await send(socket, REQUEST | {"id": "kept"})
            whole = await until_last(socket)
        async with socket_of(gate, key=A) as socket:
            for number in range(60):
                await send(socket, REQUEST | {"id": f"r{number}"})
                await until_last(socket)
            await send(socket, {"type": "resume", "id": "r0", "from": 1})
            assert code_of(await receive(socket)) == (404, "stream_not_found")
        async with socket_of(gate, key=B) as socket:
            await send(socket, {"type": "resume", "id": "kept", "from": 0})
            assert await until_last(socket) == whole
