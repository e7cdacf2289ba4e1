"""Guards of JSON through a real gateway: what clients get, what is charged, and what the judge makes of it."""

import asyncio
import contextlib
import json
import resource
import sys
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.guards import GuardBuiltin, GuardJson, GuardSpec, guards_refusal
from slipway_contracts.resilience import RetryBudget
from slipway_contracts.route_table import ResponseCache
from slipway_gateway.guards import schemas
from slipway_gateway.wire.responses import WantedJson
from testkit.until import until_async
from tests.support.report import route_reports

from ..harness import Gateway, Upstream, gateway, upstream
from ..tenants import PEPPER, bearer, make_key, tenant
from .test_guarded_requests import post
from .webhooks import Webhook, chat, guard, guarded, reach_loopback, text_of

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
OBJECT = {"response_format": {"type": "json_object"}}
GOOD, BAD, UNFIT = '{"name": "Ada", "age": 36}', '{"name": "Ada", "age":', '{"name": "Ada", "age": "old"}'


def fitting(schema: Any = SCHEMA) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}}


def json_guard(**fields: Any) -> GuardSpec:
    builtin = GuardBuiltin(json=GuardJson(fields.pop("retries", 1)))
    fields.setdefault("timeout_milliseconds", 5000)
    return GuardSpec("json", ("Output",), builtin=builtin, **fields)


class Model:
    """A model server that says one text after the other, the last one again and again. `finish`: its finish reason."""

    def __init__(self, *texts: str, finish: str = "stop", message: dict[str, Any] | None = None) -> None:
        self._texts, self._finish, self._message = list(texts), finish, message or {}
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(json.loads(await request.read()))
        text = self._texts.pop(0) if len(self._texts) > 1 else self._texts[0]
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if self.bodies[-1].get("stream"):
            return await self._stream(request, text, usage)
        if request.path == "/v1/responses":
            part = {"type": "output_text", "text": text, "annotations": []}
            item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
            return web.json_response({"id": "r", "object": "response", "status": "completed", "output": [item]})
        message = {"role": "assistant", "content": text, **self._message}
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return web.json_response({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})

    async def _stream(self, request: web.Request, text: str, usage: dict[str, int]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": one}}]} for one in text]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": self._finish}]})
        for chunk in (*chunks, {"choices": [], "usage": usage}):
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


@contextlib.asynccontextmanager
async def checked(
    model: Model, *, guards: tuple[GuardSpec, ...] = (), route: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[Gateway, Upstream]]:
    """A gateway whose only route has a guard of JSON, and its model server."""
    async with upstream(model) as server, gateway(pepper=PEPPER, **settings) as gate:
        reach_loopback(gate)
        guards = guards or (json_guard(),)
        gate.balancer.publish(guarded(guards, ("r1", 100, [server.url]), **(route or {})))
        await loaded(gate, guards)
        yield gate, server


async def loaded(gate: Gateway, guards: Iterable[GuardSpec]) -> None:
    """Until the processes of the gateway have what guards need, as its task prepares them."""
    finders = gate.edge._forwarding.guards._finders
    for one in guards:
        if one.builtin is not None:
            finders.prepare(one.builtin)
    while finders._loading:
        await asyncio.gather(*finders._loading)


def results(gate: Gateway) -> dict[str, int]:
    """What was counted of checked responses."""
    metrics = gate.balancer.metrics.registry.collect()
    name = "slipway_gateway_json_responses"
    (found,) = [metric for metric in metrics if metric.name == name]
    return {one.labels["result"]: int(one.value) for one in found.samples if one.name == f"{name}_total"}


def events(gate: Gateway) -> tuple[int, int, int]:
    """First attempts, and those with invalid JSON and with any bad event, as the judge gets them."""
    (counts,) = route_reports(gate.balancer)["default/chat"]["samples"]
    found = counts["revisions"]["r1"]
    return found["requests"], found["events"]["invalid_json"], found["events"]["bad"]


@pytest.mark.parametrize("wish", [OBJECT, fitting()], ids=["object", "schema"])
async def test_a_response_that_fits_passes_as_the_model_wrote_it(wish: dict[str, Any]) -> None:
    model = Model(GOOD)
    async with checked(model) as (gate, _):
        status, response, _ = await post(gate, chat("hi", **wish))
        assert status == 200 and response["choices"][0]["message"]["content"] == GOOD
        assert results(gate) == {"valid": 1} and len(model.bodies) == 1 and events(gate) == (1, 0, 0)


async def test_requests_that_want_no_json_are_not_checked() -> None:
    async with checked(Model(BAD)) as (gate, _):
        status, response, _ = await post(gate, chat("hi"))
        assert status == 200 and response["choices"][0]["message"]["content"] == BAD and results(gate) == {}


@pytest.mark.parametrize(("first", "wish"), [(BAD, OBJECT), (UNFIT, fitting()), ("[1]", OBJECT)])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_model_is_called_once_more_with_what_was_wrong(
    first: str, wish: dict[str, Any], stream: bool
) -> None:
    model = Model(first, GOOD)
    async with checked(model) as (gate, _):
        status, response, received = await post(gate, chat("hi", stream=stream, **wish))
        text = text_of(received) if stream else response["choices"][0]["message"]["content"]
        assert (status, text) == (200, GOOD) and gate.outcomes() == {"ok": 1}
        assert results(gate) == {"invalid": 1, "retried": 1, "valid": 1}
        before, again = model.bodies
        assert again["messages"][:-2] == before["messages"] and again["response_format"] == before["response_format"]
        assert again["messages"][-2] == {"role": "assistant", "content": first}
        assert "Reply with the corrected JSON alone" in again["messages"][-1]["content"]
        # "[1]" is JSON, and no object. The judge has the first attempt alone.
        assert events(gate) == (1, 1, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_does_not_fit_twice_is_an_error_that_names_the_place(stream: bool) -> None:
    async with checked(Model(UNFIT)) as (gate, server):
        status, refused, received = await post(gate, chat("hi", stream=stream, **fitting()))
        assert (status, refused["error"]["code"]) == (422, "invalid_response_format")
        assert refused["error"]["param"] == "response_format.json_schema.schema"
        assert "$.age does not fit type" in refused["error"]["message"] and b"old" not in received
        assert len(server.bodies) == 2 and gate.outcomes() == {"invalid_format": 1}
        assert results(gate) == {"invalid": 2, "retried": 1} and events(gate) == (1, 1, 1)


async def test_without_retries_the_first_response_decides() -> None:
    async with checked(Model(BAD, GOOD), guards=(json_guard(retries=0),)) as (gate, server):
        assert (await post(gate, chat("hi", **OBJECT)))[0] == 422 and len(server.bodies) == 1


async def test_no_retry_is_sent_beyond_the_retry_budget_of_the_route() -> None:
    async with checked(Model(BAD, GOOD), route={"retry_budget": RetryBudget(0, 0)}) as (gate, server):
        assert (await post(gate, chat("hi", **OBJECT)))[0] == 422 and len(server.bodies) == 1
        assert gate.balancer.retry_budgets.active("default/chat") == 0


async def test_the_responses_api_is_checked_by_text_format() -> None:
    wish = {"text": {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}}
    model = Model(UNFIT, GOOD)
    async with checked(model) as (gate, _):
        body = {"model": "chat", "input": "hi", **wish}
        status, response, _ = await post(gate, body, "/v1/responses")
        assert status == 200 and response["output"][0]["content"][0]["text"] == GOOD
        assert [one["role"] for one in model.bodies[1]["input"]] == ["user", "assistant", "user"]
        assert model.bodies[1]["input"][0]["content"] == "hi"


@pytest.mark.parametrize(
    ("finish", "message"),
    [
        ("length", {}),
        ("stop", {"content": None, "refusal": "I cannot."}),
        ("tool_calls", {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
    ],
)
async def test_what_was_cut_refused_or_is_a_call_is_not_checked(finish: str, message: dict[str, Any]) -> None:
    async with checked(Model('{"name": ', finish=finish, message=message)) as (gate, server):
        assert (await post(gate, chat("hi", **fitting())))[0] == 200 and len(server.bodies) == 1
        assert events(gate)[1] == 0


UNUSABLE = {
    "another document": ({"$ref": "https://example.com/schema.json"}, "$ref must begin with #"),
    "a pattern without a bound": ({"pattern": "(a+)+(?=b)"}, "no expression of RE2"),
    "no schema": ({"type": "objekt"}, "not as JSON Schema has it"),
    "a text": ("object", "not as JSON Schema has it"),
    "depth": (json.loads('{"not":' * 70 + "{}" + "}" * 70), "more than 64 levels"),
    "length": ({"enum": ["x" * (64 << 10)]}, "more than 64 KiB"),
    "a keyword": ({"unevaluatedProperties": False}, "unevaluatedProperties is not served"),
    "a definition that is missing": ({"$ref": "#/$defs/person"}, "$ref names what it does not have"),
    "an anchor that is missing": ({"properties": {"a": {"$ref": "#person"}}}, "$ref names what it does not have"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_a_schema_that_cannot_be_checked_is_refused_before_the_model(kind: str) -> None:
    schema, why = UNUSABLE[kind]
    async with checked(Model(GOOD)) as (gate, server):
        status, refused, _ = await post(gate, chat("hi", **fitting(schema)))
        assert (status, refused["error"]["code"]) == (400, "invalid_schema") and why in refused["error"]["message"]
        assert refused["error"]["param"].startswith("response_format") and not server.bodies
        assert not gate.balancer.retry_budgets.active("default/chat")


async def test_a_schema_that_refers_to_itself_without_end_is_its_client_s_fault() -> None:
    async with checked(Model(GOOD)) as (gate, _):
        status, refused, _ = await post(gate, chat("hi", **fitting({"$ref": "#"})))
        assert (status, refused["error"]["code"]) == (400, "invalid_schema")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/const/inner", "const": {"inner": {"minimum": "x"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$id": "http://example.com/a", "$ref": "#/$defs/b"}}},
    ],
)
async def test_a_schema_at_which_jsonschema_fails_is_no_failure_of_the_deployment(schema: dict[str, Any]) -> None:
    async with checked(Model("36")) as (gate, _):
        status, refused, _ = await post(gate, chat("hi", **fitting(schema)))
        assert (status, refused["error"]["code"]) == (400, "invalid_schema")
        assert gate.outcomes() == {"client_error": 1} and results(gate) == {}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is bounded by what Linux shows of it")
def test_a_check_that_takes_much_memory_ends_and_the_next_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the branches that fail keeps a message with the whole text."""
    monkeypatch.setattr(schemas, "_MAX_GROWN_BYTES", 64 << 20)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(schemas.UnusableSchema, match="MiB of memory"):
        schemas.problems(json.dumps({"anyOf": [{"type": "integer"}] * 300}), [json.dumps("a" * 1_000_000)])
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert schemas.problems(json.dumps(SCHEMA), [GOOD]) == [""]


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}]},
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": ["object", "string"],
            "properties": {"a": {"$ref": "#"}},
            "pattern": "^(a+)+$",
        },
    ],
)
def test_the_time_of_patterns_stays_bounded_where_the_schema_names_its_draft(
    schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a" * 12 + "!"

    def search(*_: Any) -> None:
        pytest.fail("a pattern was matched by Python's expressions")

    monkeypatch.setattr("jsonschema._keywords.re.search", search)
    value = {"a": text} if "properties" in schema else text
    assert "does not fit pattern" in schemas.problems(json.dumps(schema), [json.dumps(value)])[0]


def test_patterns_are_those_of_re2_and_not_of_python() -> None:
    found = schemas.problems(r'{"pattern": "^\\p{Lu}\\pL*$"}', ['"Ada"', '"ada"'])
    assert found[0] == "" and "does not fit pattern" in found[1]


async def test_a_check_that_takes_too_long_ends_and_the_next_one_works() -> None:
    """24 levels, each with two branches that fail at their ends alone: 2^24 comparisons."""
    definitions: dict[str, Any] = {"l0": {"not": {}}} | {
        f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n - 1}"}, {"$ref": f"#/$defs/l{n - 1}"}]} for n in range(1, 25)
    }
    schema = {"$defs": definitions, "$ref": "#/$defs/l24"}
    guards = (json_guard(timeout_milliseconds=3000),)
    async with checked(Model(GOOD), guards=guards, guard_processes=2) as (gate, _):
        status, refused, _ = await post(gate, chat("hi", **fitting(schema)))
        assert (status, refused["error"]["code"]) == (400, "invalid_schema") and "more than 3000 ms" in str(refused)
        assert results(gate) == {} and events(gate)[1] == 0
        await loaded(gate, guards)
        assert (await post(gate, chat("hi", **fitting())))[0] == 200


async def test_a_guard_that_does_not_decide_lets_pass_where_its_policy_is_ignore() -> None:
    guards = (json_guard(failure_policy="Ignore"),)
    async with checked(Model(UNFIT), guards=guards, guard_processes=0) as (gate, server):
        status, response, _ = await post(gate, chat("hi", **fitting()))
        assert status == 200 and response["choices"][0]["message"]["content"] == UNFIT and len(server.bodies) == 1
        assert results(gate) == {"undecided": 1}


async def test_without_its_package_a_guard_of_schemas_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    from slipway_gateway.guards import finder

    monkeypatch.setitem(sys.modules, "jsonschema", None)
    monkeypatch.setattr(schemas, "missing", lambda: True)
    assert "jsonschema is not installed" in finder.look(finder.Look(schema="{}", texts=["{}"])).problem


async def test_each_attempt_is_charged_and_takes_from_limits() -> None:
    key = make_key()
    async with checked(Model(BAD, GOOD), tenants=[tenant("team", key)], auth_mode="required") as (gate, _):
        assert (await post(gate, chat("hi", stream=True, **OBJECT), headers=bearer(key)))[0] == 200
        found = {
            one.labels["kind"]: one.value
            for metric in gate.balancer.metrics.registry.collect()
            if metric.name == "slipway_gateway_tokens"
            for one in metric.samples
            if one.name.endswith("_total")
        }
        assert found == {"input": 20, "output": 10}


async def test_a_limit_that_the_retry_reaches_leaves_the_first_response_invalid() -> None:
    from dataclasses import replace

    from slipway_gateway.quotas.policy import Policy
    from slipway_gateway.quotas.tenant import Limits

    key = make_key()
    limited = replace(tenant("team", key), policy=Policy(limits=Limits(requests_per_minute=1)))
    async with checked(Model(BAD, GOOD), tenants=[limited], auth_mode="required") as (gate, server):
        status, refused, _ = await post(gate, chat("hi", **OBJECT), headers=bearer(key))
        assert (status, refused["error"]["code"]) == (422, "invalid_response_format") and len(server.bodies) == 1


async def test_other_guards_see_what_passed_the_check() -> None:
    hook = Webhook()
    leaking = '{"name": "SECRET", "age": 1}'
    async with upstream(Model(BAD, leaking)) as server, upstream(hook) as webhook, gateway() as gate:
        reach_loopback(gate)
        both = (guard(webhook.url, ["Output"]), json_guard())
        gate.balancer.publish(guarded(both, ("r1", 100, [server.url])))
        for stream in (False, True):
            status, response, received = await post(gate, chat("hi", stream=stream, **OBJECT))
            text = text_of(received) if stream else response["choices"][0]["message"]["content"]
            assert status == 200 and json.loads(text) == {"name": "###", "age": 1}
        assert not any(BAD in text for text in hook.texts)


async def test_responses_that_are_checked_are_not_taken_from_a_cache() -> None:
    async with checked(Model(BAD, BAD, GOOD), route={"cache": ResponseCache(60)}) as (gate, server):
        body = chat("hi", temperature=0, **OBJECT)
        assert [(await post(gate, body))[0] for _ in range(2)] == [422, 200] and len(server.bodies) == 3


async def test_a_response_that_is_too_long_to_check_does_not_pass() -> None:
    async with checked(Model('{"name": "' + "x" * (5 << 20) + '"}')) as (gate, _):
        assert (await post(gate, chat("hi", **OBJECT)))[1]["error"]["code"] == "response_too_large"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (GuardSpec("j", ("Input", "Output"), builtin=GuardBuiltin(json=GuardJson())), "its stages are [Output]"),
        (GuardSpec("j", ("Output",), builtin=GuardBuiltin(("a",), json=GuardJson())), "a guard of its own"),
        (json_guard(), ""),
    ],
)
def test_a_guard_of_json_stands_alone(spec: GuardSpec, why: str) -> None:
    found = guards_refusal([spec])
    assert (why in found) if why else not found


def test_a_stream_is_read_in_parts_whatever_it_holds() -> None:
    """Each part takes the event loop for milliseconds."""
    events = b'data: {"choices":[{"delta":{"content":"1"}}]}\n\n' * 20_000 + b"data: [DONE]\n\n"
    found = WantedJson(events, streamed=True)
    assert sum(1 for _ in found.steps()) > 20 and found.texts == ["1" * 20_000]
    broken = WantedJson(events + b"data: {\n\n", streamed=True)
    assert list(broken.steps()) and broken.texts is None


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_s_messages_are_checked_by_the_same_code(stream: bool) -> None:
    wish = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    body = {
        "model": "chat",
        "max_tokens": 900,
        "messages": [{"role": "user", "content": "hi"}],
        "stream": stream,
        **wish,
    }
    async with checked(Model(UNFIT, GOOD, UNFIT)) as (gate, server):
        status, message, received = await post(gate, body, "/v1/messages")
        assert status == 200 and len(server.bodies) == 2 and b"old" not in received
        if stream:
            lines = [json.loads(line[6:]) for line in received.split(b"\n") if line.startswith(b"data: ")]
            texts = [line["delta"].get("text", "") for line in lines if line["type"] == "content_block_delta"]
            assert "".join(texts) == GOOD and lines[-1]["type"] == "message_stop"
        else:
            assert message["content"][0]["text"] == GOOD
        status, refused, _ = await post(gate, body, "/v1/messages")
        assert status == 422 and refused["type"] == "error" and "$.age" in refused["error"]["message"]


async def test_the_canary_that_does_not_fit_the_schema_is_the_one_with_bad_sessions() -> None:
    async with upstream(Model(GOOD)) as stable, upstream(Model(UNFIT)) as canary, gateway() as gate:
        guards = (json_guard(),)
        gate.balancer.publish(guarded(guards, ("s", 50, [stable.url]), ("c", 50, [canary.url])))
        await loaded(gate, guards)
        answers = [await post(gate, chat("hi", user=f"user-{n}", **fitting())) for n in range(24)]
        (found,) = route_reports(gate.balancer)["default/chat"]["samples"]
        sides = {name: (side["requests"], side["events"]["invalid_json"]) for name, side in found["revisions"].items()}
        assert sides["s"][1] == 0 and sides["c"][0] == sides["c"][1] > 0, sides
        assert [status for status, *_ in answers].count(422) == sides["c"][0]
        # The second attempt goes to the revision of the first one, and counts for none.
        assert len(canary.bodies) == 2 * sides["c"][0] and len(stable.bodies) == sides["s"][0]
        assert sum(requests for requests, _ in sides.values()) == 24


class Breaking(Model):
    """A model server whose first stream is whole, and whose second one stays open, or ends, behind its first event."""

    def __init__(self, *, ends: bool) -> None:
        super().__init__(BAD)
        self.is_second, self._ends = asyncio.Event(), ends

    async def _stream(self, request: web.Request, text: str, usage: dict[str, int]) -> web.StreamResponse:
        if len(self.bodies) < 2:
            return await super()._stream(request, text, usage)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"index": 0, "delta": {"content": "{"}}]}\n\n')
        self.is_second.set()
        if not self._ends:
            await asyncio.Event().wait()
        assert request.transport is not None
        request.transport.abort()
        return response


async def test_a_server_that_dies_in_the_second_attempt_at_a_stream_is_seen() -> None:
    async with checked(Breaking(ends=True)) as (gate, _):
        status, _, received = await post(gate, chat("hi", stream=True, **OBJECT))
        assert status == 200 and b"upstream_died" in received
        assert gate.outcomes() == {"upstream_error": 1}


async def test_a_client_that_leaves_in_the_second_attempt_at_a_stream_has_nothing_of_the_first_one() -> None:
    model = Breaking(ends=False)
    async with checked(model) as (gate, _):
        calling = asyncio.create_task(post(gate, chat("hi", stream=True, **OBJECT)))
        await model.is_second.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await until_async(lambda: not gate.edge.running, "the request ended")
        assert gate.outcomes() == {"client_closed": 1} and gate.budget.used_bytes == 0
        assert gate.balancer.retry_budgets.active("default/chat") == 0


async def test_the_request_of_the_second_attempt_counts_as_memory() -> None:
    used: list[int] = []

    class Watching(Model):
        async def __call__(self, request: web.Request) -> web.StreamResponse:
            used.append(gate.budget.used_bytes)
            return await super().__call__(request)

    async with checked(Watching(BAD, GOOD)) as (gate, _):
        assert (await post(gate, chat("h" * 1_000_000, **OBJECT)))[0] == 200
        before, again = used
        assert again > before + 1_000_000
        assert gate.budget.used_bytes == 0


async def test_the_second_attempt_is_none_that_the_lane_has_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard may come with a table between the lane's request and its response."""

    class Begun:
        id, ages_s, is_traced, was_idle, owner = "0" * 32, (0.0, 0.0), False, False, ""
        was_cached, detached, passed = None, 0, ()

        def detach(self) -> int | None:
            self.detached += 1
            return None

        def take_place(self) -> bool:
            return False

        def take_prefill(self) -> None:
            pass

        counted = end = take_prefill

    model, begun = Model(BAD, GOOD), Begun()
    async with checked(model) as (gate, server):
        begun.endpoint = ("default/chat", "chat", "r1", server.url)  # type: ignore[attr-defined]
        monkeypatch.setattr("slipway_gateway.serving.api.begun_in_lane", lambda _: begun)
        assert (await post(gate, chat("hi", **OBJECT)))[0] == 200
        assert begun.detached == 1 and len(model.bodies) == 2
