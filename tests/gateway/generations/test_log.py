"""The generation log of a gateway: whose requests are in it, with what, and that it has what clients got."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.route_table import Backend, GenerationLogSample, ResponseCache
from slipway_gateway.identity.tenants import KnownTenant
from slipway_gateway.routing.table import RevisionEndpoints, Route, build
from slipway_process.sealing import Keyring
from testkit.until import until_async
from tests.process.test_sealing import keys_file

from ..guards.webhooks import CHAT, Webhook, chat, guarded_gateway, replying, streaming, text_of
from ..harness import Gateway, Handler, gateway, upstream
from ..tenants import PEPPER, bearer, make_key, tenant
from ..token_streams import GENERATE, generating, send, socket_of, until_last
from .logged import rows

KEY = make_key()
FULL, METADATA = GenerationLogSample(100, contents=True), GenerationLogSample(100)


def acme(level: str) -> KnownTenant:
    return replace(tenant("acme", KEY), generation_log=level)


def settings(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    keys = keys_file(tmp_path / "keys", "k1")
    url = f"sqlite:///{tmp_path}/log.db"
    return {"generation_log_url": url, "generation_log_keys_file": keys, "tenant_salt": "salt"} | changes


def logged(tmp_path: Path) -> list[dict[str, Any]]:
    return rows(f"sqlite:///{tmp_path}/log.db", Keyring(str(tmp_path / "keys")))


@asynccontextmanager
async def logging(
    tmp_path: Path, model: Handler, level: str = "Full", rule: GenerationLogSample | None = FULL, **changes: Any
) -> AsyncIterator[Gateway]:
    """A gateway with one model and a guard that redacts SECRET and blocks VETO."""
    about = {"tenants": [acme(level)], "route": {"generation_log": rule} | changes.pop("route", {})}
    stages = changes.pop("stages", ("Input", "Output"))
    async with guarded_gateway(model, Webhook(), stages, **about, **settings(tmp_path, **changes)) as (gate, _, _):
        yield gate


async def post(gate: Gateway, body: Any, path: str = CHAT, **headers: str) -> tuple[int, bytes]:
    async with await gate.post(body, path, headers=bearer(KEY) | headers) as response:
        return response.status, await response.read()


async def test_a_row_has_what_the_model_and_the_client_got_after_redaction(tmp_path: Path) -> None:
    async with logging(tmp_path, replying("it is SECRET")) as gate:
        body = chat("my SECRET")
        status, received = await post(gate, body, **{"X-Request-Id": "mine"})
    assert status == 200 and b"SECRET" not in received
    [row] = logged(tmp_path)
    sent = json.loads(row["input"])
    assert sent == body | {"messages": [{"role": "user", "content": "my ###"}]}
    assert row["output"] == received, "exactly what the client got"
    assert (row["tenant"], row["route"], row["revision"], row["request_id"]) == ("acme", "default/chat", "r1", "mine")
    assert (row["status"], row["outcome"], row["path"], row["stream"]) == (200, "ok", CHAT, False)
    assert (row["input_bytes"], row["output_bytes"]) == (len(row["input"]), len(received))
    for name in ("input", "output"):
        assert row[f"{name}_hash"] == hmac.new(b"salt", b"acme\0" + row[name], hashlib.sha256).hexdigest()
    assert b"SECRET" not in (tmp_path / "log.db").read_bytes()


async def test_a_stream_is_logged_as_its_client_got_it(tmp_path: Path) -> None:
    tokens = ["Hello ", "SEC", "RET", " and ", "bye"]
    async with logging(tmp_path, streaming(tokens)) as gate:
        status, received = await post(gate, chat("hi", stream=True))
    [row] = logged(tmp_path)
    assert status == 200 and row["output"] == received and row["stream"]
    assert text_of(row["output"]) == "Hello ### and bye"


async def test_of_a_stream_that_a_guard_ends_the_row_has_what_was_shown(tmp_path: Path) -> None:
    shown = asyncio.Event()
    model = streaming(["ok "] * 40 + ["VETO"] + ["never"] * 20, waits={"VETO": shown})
    async with (
        logging(tmp_path, model) as gate,
        await gate.post(chat("hi", stream=True), CHAT, headers=bearer(KEY)) as response,
    ):
        received = b""
        while text_of(received).count("ok") < 20:  # the rest may still be in the guard's window
            received += await response.content.readuntil(b"\n\n")
        shown.set()
        received += await response.read()
    [row] = logged(tmp_path)
    assert row["output"] == received and text_of(received).count("ok") >= 20
    assert "VETO" not in text_of(received) and "never" not in text_of(received)
    assert row["outcome"] == "blocked"


async def test_of_a_stream_whose_client_leaves_the_row_has_what_was_written(tmp_path: Path) -> None:
    async with logging(tmp_path, streaming(["tick "] * 400, gap_s=0.02), stages=["Input"]) as gate:
        async with await gate.post(chat("hi", stream=True), CHAT, headers=bearer(KEY)) as response:
            received = await response.content.readuntil(b"\n\n")
            response.close()
        await gate.edge.idle()
    [row] = logged(tmp_path)
    assert row["outcome"] == "client_closed" and row["output"].startswith(received)
    assert b"[DONE]" not in row["output"] and row["output_bytes"] == len(row["output"])


@pytest.mark.parametrize("blocked", ["VETO", "fine"])
async def test_what_guards_block_leaves_no_row(tmp_path: Path, blocked: str) -> None:
    async with logging(tmp_path, replying("VETO")) as gate:
        assert (await post(gate, chat(blocked)))[0] == 400
    assert logged(tmp_path) == []


@pytest.mark.parametrize(
    ("level", "rule", "kept"),
    [
        ("", FULL, None), ("None", FULL, None), ("Later", FULL, None), ("Full", None, None), ("None", None, None),
        ("Full", GenerationLogSample(0, contents=True), None),
        ("Metadata", FULL, False), ("Full", METADATA, False), ("Metadata", METADATA, False), ("Full", FULL, True),
    ],
)  # fmt: skip
async def test_owner_and_tenant_both_have_to_allow_it(
    tmp_path: Path, level: str, rule: GenerationLogSample | None, kept: bool | None
) -> None:
    async with logging(tmp_path, replying("fine"), level, rule) as gate:
        assert (await post(gate, chat("hi")))[0] == 200
    found = logged(tmp_path)
    assert len(found) == (0 if kept is None else 1)
    for row in found:
        assert (row["input"] is not None, row["output"] is not None) == (kept, kept)
        assert row["input_omitted"] == row["output_omitted"] == (None if kept else "not_allowed")
        assert row["output_bytes"] > 0 and len(row["input_hash"]) == 64


async def test_requests_without_a_tenant_are_never_logged(tmp_path: Path) -> None:
    made = settings(tmp_path)
    async with guarded_gateway(replying("x"), Webhook(), route={"generation_log": FULL}, **made) as (gate, _, _):
        assert (await post(gate, chat("hi")))[0] == 200
    assert logged(tmp_path) == []


async def test_without_keys_and_of_long_contents_lengths_and_hashes_are_logged(tmp_path: Path) -> None:
    async with logging(tmp_path, replying("fine"), generation_log_keys_file="") as gate:
        await post(gate, chat("hi"))
        assert gate.metrics.registry.get_sample_value(
            "slipway_gateway_generation_log_omitted_total", {"reason": "no_keys"}
        ) == 2  # fmt: skip
    async with logging(tmp_path, replying("x" * 3000), generation_log_max_content_bytes=1000) as gate:
        await post(gate, chat("hi"))
    first, second = sorted(logged(tmp_path), key=lambda row: row["output_bytes"])
    assert (first["input"], first["output"], first["input_omitted"], first["output_omitted"]) == (
        None, None, "no_keys", "no_keys",
    )  # fmt: skip
    assert second["input"] is not None and (second["output"], second["output_omitted"]) == (None, "too_long")
    assert second["output_bytes"] > 3000


@pytest.mark.parametrize(
    "path",
    ["/v1/completions", "/v1/responses", "/v1/generate", "/api/v1/generate", "/api/v1/models/chat/generate"],
)
async def test_every_path_for_text_is_in_the_log(tmp_path: Path, path: str) -> None:
    async with logging(tmp_path, replying("fine")) as gate:
        assert (await post(gate, {"model": "chat", "prompt": "hi", "input": "hi"}, path))[0] == 200
        assert (await post(gate, {"model": "chat", "input": "hi"}, "/v1/embeddings"))[0] == 200
        assert (await post(gate, {"model": "chat", "prompt": "hi"}, "/tokenize"))[0] == 200
    assert [row["path"] for row in logged(tmp_path)] == [path]


async def test_errors_of_servers_leave_no_row(tmp_path: Path) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.json_response({"error": {"message": "bad"}}, status=400)

    async with logging(tmp_path, refuse) as gate:
        assert (await post(gate, chat("hi")))[0] == 400
    assert logged(tmp_path) == []


async def test_a_response_from_a_cache_is_in_the_log(tmp_path: Path) -> None:
    route = {"cache": ResponseCache(60)}
    async with logging(tmp_path, replying("fine"), route=route) as gate:
        bodies = [(await post(gate, chat("hi", temperature=0)))[1] for _ in range(2)]
    assert [row["output"] for row in logged(tmp_path)] == bodies


@pytest.mark.parametrize("allows", [False, True])
async def test_the_owner_of_what_answers_instead_has_to_allow_it_too(tmp_path: Path, allows: bool) -> None:
    async with (
        upstream(replying("from the small one")) as small,
        gateway([acme("Full")], PEPPER, **settings(tmp_path)) as gate,
    ):
        gone = "http://127.0.0.1:9"
        chosen = Route("ns/chat", "u1", "chat", generation=1, salt="s", generation_log=FULL, fallback=("small",))
        other = Route("ns/small", "u2", "small", generation=1, salt="s", generation_log=FULL if allows else None)
        backends = [replace(one, backends=(Backend("r", 100),)) for one in (chosen, other)]
        ends = [RevisionEndpoints("ns/chat", "r", (gone,)), RevisionEndpoints("ns/small", "r", (small.url,))]
        gate.balancer.publish(build(backends, ends))
        status, received = await post(gate, chat("hi"))
        assert status == 200 and b"from the small one" in received
    found = logged(tmp_path)
    assert [row["route"] for row in found] == (["ns/small"] if allows else [])


async def test_messages_of_anthropic_are_logged_as_the_model_has_them(tmp_path: Path) -> None:
    async with logging(tmp_path, replying("fine")) as gate:
        body = {"model": "chat", "max_tokens": 5, "messages": [{"role": "user", "content": "my SECRET"}]}
        assert (await post(gate, body, "/v1/messages"))[0] == 200
    [row] = logged(tmp_path)
    assert row["path"] == CHAT and b"my ###" in row["input"] and b"fine" in row["output"]


async def test_a_stream_by_websocket_is_logged_as_the_events_of_the_model(tmp_path: Path) -> None:
    async with logging(tmp_path, generating("In", " the"), stages=["Input"]) as gate:
        async with socket_of(gate, headers=bearer(KEY)) as socket:
            await send(socket, GENERATE)
            messages = await until_last(socket)
        await gate.edge.idle()
    [row] = logged(tmp_path)
    assert [message.get("token") for message in messages] == ["In", " the", None]
    assert (row["path"], row["outcome"], row["stream"]) == ("/v1/generate", "ok", True)
    assert row["output"].count(b'"token":') == 2 and json.loads(row["input"])["stream"] is True


async def test_of_two_tenants_each_has_its_own_rows(tmp_path: Path) -> None:
    other = make_key("bbbbbb")
    tenants = [acme("Full"), replace(tenant("quiet", other), generation_log="None")]
    route = {"generation_log": FULL}
    async with guarded_gateway(replying("x"), Webhook(), tenants=tenants, route=route, **settings(tmp_path)) as (
        gate, _, _,
    ):  # fmt: skip
        for key in (KEY, other):
            async with await gate.post(chat("hi"), CHAT, headers=bearer(key)) as response:
                assert response.status == 200
    assert [row["tenant"] for row in logged(tmp_path)] == ["acme"]


async def test_a_database_that_is_away_holds_up_no_request(tmp_path: Path) -> None:
    away: dict[str, Any] = {"generation_log_url": "postgresql://user:secret@127.0.0.1:9/d"}
    async with logging(tmp_path, replying("fine"), **away) as gate:
        assert [(await post(gate, chat("hi")))[0] for _ in range(3)] == [200] * 3
        dropped = {"reason": "write_failed"}
        await until_async(
            lambda: gate.metrics.registry.get_sample_value("slipway_gateway_generation_log_dropped_total", dropped),
            holds=lambda count: count == 3,
        )
