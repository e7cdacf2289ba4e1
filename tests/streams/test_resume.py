"""A stream outlives its server: cut anywhere, it continues at another one, and no text is lost or repeated."""

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from testkit.until import until, until_async
from tests.gateway import test_process
from tests.gateway.harness import Gateway, gateway
from tests.server.process import ServerProcess, get
from tests.support.report import route_reports

from .scissors import scissors

# A start imports torch and transformers: seconds on a quiet machine, a minute on a crowded one.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

MESSAGES = [{"role": "user", "content": "And God said, Let there be light: and there was light."}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 60, "extra_body": {"ignore_eos": True}}
SEEDED: dict[str, Any] = {"temperature": 1.2, "top_p": 0.95, "seed": 7, "max_tokens": 60, "frequency_penalty": 0.4}
STOPPED: dict[str, Any] = {"temperature": 0, "max_tokens": 200, "stop": ["And the LORD", "shall be"]}


def client_of(gate: Gateway) -> openai.AsyncOpenAI:
    return client_at(gate.url)


def client_at(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)


async def chat(client: openai.AsyncOpenAI, received: list[Any] | None = None, **options: Any) -> dict[str, Any]:
    """What the client made of a stream, and that it was one: one id, one role, one finish, one usage at the end.

    `received`: takes the chunks as they come.
    """
    options = {"stream_options": {"include_usage": True}} | options
    stream = await client.chat.completions.create(model="chat", messages=MESSAGES, stream=True, **options)  # type: ignore[call-overload]
    chunks = [] if received is None else received
    async for chunk in stream:
        chunks.append(chunk)
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert [d.delta.role for d in deltas if d.delta.role] == ["assistant"]
    assert [bool(d.finish_reason) for d in deltas] == [False] * (len(deltas) - 1) + [True]
    assert [bool(chunk.usage) for chunk in chunks] == [False] * len(deltas) + [True]
    usage = chunks[-1].usage
    return {
        "texts": [d.delta.content for d in deltas],
        "finish": deltas[-1].finish_reason,
        "usage": (usage.prompt_tokens, usage.completion_tokens),
    }


def resumes(gate: Gateway) -> dict[str, int]:
    found = {}
    for family in gate.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "slipway_gateway_resumes_total":
                found[sample.labels["outcome"]] = int(sample.value)
    return found


@pytest.mark.parametrize("options", [GREEDY, SEEDED, STOPPED], ids=["greedy", "seeded", "stopped"])
async def test_cut_anywhere(pods: list[ServerProcess], options: dict[str, Any]) -> None:
    """Cuts fall into heads, marks, events and the end alike; each stream is cut twice."""
    chance = random.Random(20)
    async with scissors(pods[-1].url) as wire, gateway(resume_timeout_s=20) as gate, client_of(gate) as client:
        gate.route(("rev", 100, [wire.url]))
        undisturbed = await chat(client, **options)
        assert resumes(gate) == {}
        size = 350 * len(undisturbed["texts"])
        streams = 12
        for _ in range(streams):
            wire.cuts = [chance.randrange(400, size), chance.randrange(400, size // 2)]
            assert await chat(client, **options) == undisturbed
            wire.cuts = []
        assert set(resumes(gate)) == {"resumed"} and resumes(gate)["resumed"] > streams
        assert gate.outcomes() == {"ok": streams + 1}


async def respond(client: openai.AsyncOpenAI, **options: Any) -> list[dict[str, Any]]:
    """Events of a stream of the Responses API, in which nothing is missing or twice. Ids differ between streams."""
    stream = await client.responses.create(model="chat", input="In the beginning", stream=True, **options)
    found = [event async for event in stream]
    assert [event.sequence_number for event in found] == list(range(len(found)))
    assert len({event.response.id for event in found if hasattr(event, "response")}) == 1
    assert found[-1].response.output_text == "".join(one.delta for one in found if one.type.endswith("text.delta"))
    return [{"type": one.type, "delta": getattr(one, "delta", "")} for one in found]


async def test_responses_cut_anywhere(pods: list[ServerProcess]) -> None:
    """Their first, and last, token has several events."""
    options: dict[str, Any] = {"temperature": 0, "max_output_tokens": 30, "extra_body": {"ignore_eos": True}}
    chance = random.Random(21)
    async with scissors(pods[-1].url) as wire, gateway(resume_timeout_s=20) as gate, client_of(gate) as client:
        gate.route(("rev", 100, [wire.url]))
        undisturbed = await respond(client, **options)
        assert [event["type"] for event in undisturbed].count("response.output_text.delta") > 10
        for _ in range(12):
            wire.cuts = [chance.randrange(400, 14_000), chance.randrange(400, 5_000)]
            assert await respond(client, **options) == undisturbed
            wire.cuts = []
        assert set(resumes(gate)) == {"resumed"} and resumes(gate)["resumed"] > 12
        assert gate.outcomes() == {"ok": 13}


async def test_responses_whose_server_is_gone_end_with_an_error_that_the_client_raises(
    pods: list[ServerProcess],
) -> None:
    async with scissors(pods[-1].url) as wire, gateway(resume_timeout_s=0.5) as gate, client_of(gate) as client:
        gate.route(("rev", 100, [wire.url]))
        wire.cuts = [4000] + [0] * 50
        with pytest.raises(openai.APIError, match="Servers stopped"):
            await respond(client, temperature=0, max_output_tokens=60)


async def events(
    gate: Gateway, body: dict[str, Any], path: str = "/v1/completions", **headers: str
) -> AsyncIterator[tuple[str, Any]]:
    """Id and data of each event; the last one has no id."""
    async with await gate.post({"model": "chat", "stream": True} | body, path, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        lines: dict[str, str] = {}
        async for line in answer.content:
            if name := line.decode().strip():
                key, _, value = name.partition(": ")
                lines[key] = value
            else:
                yield lines.get("id", ""), lines["data"]
                lines = {}


VERSE = {"prompt": "In the beginning", "max_tokens": 60, "ignore_eos": True, "stream_options": {"include_usage": True}}


async def test_a_draw_without_a_seed_goes_on(pods: list[ServerProcess]) -> None:
    async with scissors(pods[-1].url) as wire, gateway(resume_timeout_s=20) as gate:
        gate.route(("rev", 100, [wire.url]))
        wire.cuts = [3000, 3000]
        cut = [event async for event in events(gate, VERSE)]
        assert resumes(gate) == {"resumed": 2}
        seed = int(cut[0][0].split(".")[1].split("-")[0], 16)
        whole = [event async for event in events(gate, VERSE | {"seed": seed})]
        assert [texts_of(data) for _, data in cut] == [texts_of(data) for _, data in whole]
        other = [event async for event in events(gate, VERSE)]
        assert [texts_of(data) for _, data in other] != [texts_of(data) for _, data in whole]


def texts_of(data: str) -> Any:
    if data == "[DONE]":
        return data
    return [(choice["text"], choice["finish_reason"]) for choice in json.loads(data)["choices"]]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/generate", "/api/v1/generate"])
async def test_a_client_comes_back_to_any_gateway(pods: list[ServerProcess], path: str) -> None:
    # A draw may end with its first token, and only OpenAI's path has a field against it.
    body = VERSE if path == "/v1/completions" else {"prompt": "In the beginning", "max_tokens": 40, "temperature": 0}
    async with scissors(pods[-1].url) as wire, gateway(resume_timeout_s=20) as one, gateway(resume_timeout_s=20) as two:
        for gate in (one, two):
            gate.route(("other", 100, []), ("rev", 0, [wire.url]))
        whole = [event async for event in events(one, body, path)]
        for index in (0, 1, len(whole) // 2, len([name for name, _ in whole if name]) - 1):
            wire.cuts = [3000]
            rest = [event async for event in events(two, body, path, **{"Last-Event-ID": whole[index][0]})]
            assert rest == whole[index + 1 :]
            wire.cuts = []
        assert two.outcomes() == {"ok": 4}


async def test_stream_that_cannot_be_resumed_ends_with_an_error(pods: list[ServerProcess]) -> None:
    async def code(gate: Gateway, name: str, **changes: Any) -> tuple[int, str]:
        body = {"model": "chat", "stream": True} | VERSE | changes
        async with await gate.post(body, "/v1/completions", headers={"Last-Event-ID": name}) as answer:
            return answer.status, (await answer.json())["error"]["code"]

    async with gateway(hold_timeout_s=0.1) as gate:
        gate.route(("rev", 100, [pods[-1].url]))
        names = [name async for name, _ in events(gate, VERSE | {"temperature": 0})]
        assert await code(gate, names[9], prompt="Blessed are they", temperature=0) == (410, "stream_gone")
        assert await code(gate, names[9].replace("rev", "old")) == (410, "stream_gone")
        assert await code(gate, "17") == (400, "invalid_last_event_id")
        assert (await code(gate, names[9], stream=False))[0] == 400
        gate.route(("rev", 100, []))
        assert await code(gate, names[9]) == (503, "model_not_ready")


async def test_several_prompts_in_a_stream_end_with_an_error(pods: list[ServerProcess]) -> None:
    """Their events come in no order that another server would repeat."""
    async with scissors(pods[-1].url) as wire, gateway() as gate:
        gate.route(("rev", 100, [wire.url]))
        wire.cuts = [5000]
        received = [event async for event in events(gate, VERSE | {"prompt": ["In the beginning", "Blessed are they"]})]
        assert json.loads(received[-2][1])["error"]["code"] == "upstream_died" and received[-1] == ("", "[DONE]")
        assert not any(name for name, _ in received)
        assert gate.outcomes() == {"upstream_error": 1} and resumes(gate) == {}


async def test_another_revision_never_goes_on_with_a_stream(pods: list[ServerProcess]) -> None:
    async with scissors(pods[-1].url) as wire, gateway(resume_timeout_s=0.3) as gate:
        gate.route(("c", 100, [wire.url]), ("s", 0, [pods[-1].url]))
        wire.cuts = [5000]
        stream = events(gate, VERSE)
        received = [await anext(stream)]
        gate.route(("c", 100, []), ("s", 0, [pods[-1].url]))
        received += [event async for event in stream]
        assert json.loads(received[-2][1])["error"]["code"] == "upstream_died" and received[-1] == ("", "[DONE]")
        assert resumes(gate) == {"lost": 1} and gate.outcomes() == {"upstream_error": 1}
        assert route_reports(gate.balancer)["default/chat"]["revisions"]["s"]["requests"] == 0


FIRST_TOKENS = "vllm:time_to_first_token_seconds_count"


def stop_half_way(pod: ServerProcess, requests: int, before: float) -> psutil.Process:
    """The pod's engine, stopped when all have their first token: none is retried whole, and none ends in time.

    `before`: what the pod had counted of FIRST_TOKENS.
    """
    engine = pod.engine

    def stopped() -> bool:
        if (pod.metric(FIRST_TOKENS) - before, pod.running()) == (requests, requests):
            engine.suspend()
        return engine.status() == psutil.STATUS_STOPPED

    until(stopped, f"first tokens of {requests} requests")
    return engine


def kill(pod: ServerProcess, engine: psutil.Process) -> None:
    pod.process.kill()
    engine.resume()  # it ends by itself


def kill_engine(_: ServerProcess, engine: psutil.Process) -> None:
    engine.kill()


async def test_streams_outlive_killed_pods(pods: list[ServerProcess], tmp_path: Path) -> None:
    """The last test of the pods: of three only one is left. Requests without a stream are retried whole."""
    long = GREEDY | {"max_tokens": 250}
    whole = {"model": "chat", "prompt": "In the beginning", "max_tokens": 250, "temperature": 0}
    body = {"ignore_eos": True}
    path = test_process.routes(tmp_path / "routes.yaml", pods[-1].url)
    flags = ("--routes", str(path), "--resume-timeout=200")
    async with test_process.gateway(*flags) as gate, client_at(gate.url("api")) as client:

        async def route(*urls: str) -> None:
            before = len(gate.log_entries("routes file loaded"))
            test_process.routes(path, *urls)
            gate.process.send_signal(signal.SIGHUP)
            await until_async(lambda: len(gate.log_entries("routes file loaded")) > before)

        undisturbed = await chat(client, **long)
        answer = await client.completions.create(**whole, extra_body=body)
        for index, death in enumerate((kill, kill_engine)):
            # The one that dies is the only endpoint when they begin: it gets them all.
            await route(pods[index].url)
            before, received = pods[index].metric(FIRST_TOKENS), [list[Any]() for _ in range(6)]
            streams = [asyncio.create_task(chat(client, chunks, **long)) for chunks in received]
            # Of bytes of their own, not answered before: they are tried where another pod is left, or comes back.
            named = [whole | {"user": f"user {index}.{number}"} for number in range(2)]
            others = [asyncio.create_task(client.completions.create(**one, extra_body=body)) for one in named]
            engine = await asyncio.to_thread(stop_half_way, pods[index], 8, before)
            await until_async(lambda received=received: all(received))
            await route(*(pod.url for pod in pods[index:]))
            death(pods[index], engine)
            assert await asyncio.gather(*streams) == [undisturbed] * 6
            assert [other.choices for other in await asyncio.gather(*others)] == [answer.choices] * 2
        metrics = get(gate.url("admin") + "/metrics")[1].decode().splitlines()
        counted = ("slipway_gateway_requests_total{", "slipway_gateway_resumes_total{")
        assert sorted(line for line in metrics if line.startswith(counted)) == [
            'slipway_gateway_requests_total{code="200",model="chat",outcome="ok",revision="v1"} 18.0',
            'slipway_gateway_resumes_total{model="chat",outcome="resumed",revision="v1"} 12.0',
        ]
