"""Spans of requests: which are recorded, what servers get, and one trace from the client to the engine's steps."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from slipway_gateway.telemetry.tracing import UNTRACED, RecordedTrace, Traces, UnrecordedTrace
from slipway_process.spans import Exporter
from testkit.until import until_async
from tests.server.process import ServerProcess, get
from tests.support.otlp import Receiver, attributes

from .harness import Gateway, upstream
from .harness import gateway as started
from .tenants import PEPPER, bearer, make_key, tenant
from .test_process import gateway, routes

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
RECORDED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
ID = "ab" * 16
ENDED = {
    ("slipway-gateway", 2),
    ("slipway-gateway", 3),
    ("slipway-server", 2),
}  # spans of both kinds, server and client


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def traces(
    share: float = 0.0, parents_per_s: float = 0.0, clock: Clock | None = None, most_per_s: int = 1000
) -> tuple[Traces, Any]:
    """Traces whose spans are kept in memory; chance is always in the middle."""
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    exporter = Exporter(provider, "test")
    made = Traces(exporter, share, parents_per_s, most_per_s=most_per_s, clock=clock or Clock(), chance=lambda: 0.5)
    return made, kept


def sent(trace: Any) -> Mapping[str, str]:
    """The headers that a server gets."""
    headers = {"traceparent": "of the client"}
    with trace.attempt(headers, "http://pod", "rev", 1):
        return dict(headers)


# -- which requests are recorded


def test_without_a_receiver_headers_stay_as_they_are() -> None:
    trace = Traces(Exporter(), 1, 1, most_per_s=1).begin(RECORDED, ID)
    assert trace is UNTRACED and sent(trace) == {"traceparent": "of the client"} and trace.trace_id == ""


@pytest.mark.parametrize(("share", "recorded"), [(0.0, False), (0.4, False), (0.6, True), (1.0, True)])
def test_a_share_of_all_requests_is_recorded_and_servers_know_of_each(share: float, recorded: bool) -> None:
    trace = traces(share)[0].begin({}, ID)
    assert isinstance(trace, RecordedTrace) is recorded
    written = sent(trace)["traceparent"]
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0" + "01"[recorded], written)
    assert recorded or written == f"00-{ID}-{ID[:16]}-00"


def test_of_a_share_no_more_than_so_many_a_second_are_recorded() -> None:
    clock = Clock()
    made, _ = traces(share=1.0, clock=clock, most_per_s=4)

    def recorded() -> int:
        return sum(isinstance(made.begin({}, ID), RecordedTrace) for _ in range(50))

    assert recorded() == 4
    clock.now_s = 0.5
    assert recorded() == 2
    clock.now_s = 100.0
    assert recorded() == 4, "what was not used is not saved up"


def test_as_many_a_second_are_recorded_as_the_setting_allows_and_half_of_them_for_one_client() -> None:
    clock = Clock()
    made, _ = traces(parents_per_s=4, clock=clock)

    def recorded(client: str) -> int:
        return sum(isinstance(made.begin(RECORDED, ID, client=client), RecordedTrace) for _ in range(50))

    assert [recorded(client) for client in ("large", "large", "small", "third")] == [2, 0, 2, 0]
    clock.now_s = 1.0
    assert recorded("large") == 2
    clock.now_s = 1.4
    assert recorded("large") == 0
    clock.now_s = 100.0
    assert recorded("large") == 2, "what was not used is not saved up"


def test_what_is_not_recorded_keeps_its_ids_and_a_client_without_interest_is_not_recorded() -> None:
    made, _ = traces(parents_per_s=100)
    quiet = made.begin({"traceparent": f"00-{TRACE}-{PARENT}-00"}, ID)
    assert isinstance(quiet, UnrecordedTrace)
    assert sent(quiet)["traceparent"] == f"00-{TRACE}-{PARENT}-00"
    none, _ = traces()
    assert sent(none.begin(RECORDED, ID))["traceparent"] == f"00-{TRACE}-{PARENT}-00"


@pytest.mark.parametrize(
    ("state", "kept"),
    [("a=1", True), ("congo=t61rcWkgMzE,rojo@a=00f067aa0ba902b7", True), (" a=1", False), ("a", False), ("A=1", False),
     ("a=1," * 100, False), ("a=" + "x" * 600, False), ("a=\udcff", False), ("a=1\t,\tb=2", True), ("", False),
     (",".join(f"k{number}=v" for number in range(33)), False), ("a=1,a=2", True), ("a= ", False), ("a=b=c", False)],
    ids=range(14),
)  # fmt: skip
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_malformed_tracestate_reaches_no_log_and_no_server(
    state: str, kept: bool, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    for traceparent, is_kept in ((RECORDED["traceparent"], kept), ("none", False)):  # with none it is no trace's
        trace = traces(share)[0].begin({"traceparent": traceparent, "tracestate": state}, ID)
        headers = {"traceparent": traceparent, "tracestate": state}
        with trace.attempt(headers, "http://pod", "rev", 1):
            assert headers.get("tracestate") == (state if is_kept else None)
    assert caplog.text == ""


@pytest.mark.parametrize(
    "header",
    ["", "00", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{PARENT}-01",
     f"00-{TRACE}-{PARENT}-01-more", f"00-{TRACE.upper()}-{PARENT}-01", "x" * 60_000, "\u0660" * 55],
    ids=range(9),
)  # fmt: skip
def test_a_malformed_traceparent_is_none(header: str) -> None:
    made, _ = traces(parents_per_s=100)
    assert sent(made.begin({"traceparent": header}, ID))["traceparent"] == f"00-{ID}-{ID[:16]}-00"


# -- what is recorded


@contextlib.asynccontextmanager
async def traced(*handlers: Any, **changes: Any) -> AsyncIterator[tuple[Gateway, list[Any], Any]]:
    """A gateway that records all requests, its servers, and the spans so far."""
    made, kept = traces(share=1.0)
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(upstream(handler)) for handler in handlers]
        gate = await stack.enter_async_context(started(traces=made, **changes))
        gate.route(("rev", 100, [server.url for server in servers]))
        yield gate, servers, kept


async def busy(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "full", "code": "busy"}}, status=503)


async def answers(_: web.Request) -> web.StreamResponse:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return web.json_response({"id": "1", "object": "chat.completion", "choices": [], "usage": usage})


async def test_each_attempt_is_a_span_and_its_server_gets_its_id() -> None:
    async with traced(busy, busy, answers) as (gate, servers, kept):
        async with await gate.post(headers=RECORDED) as answer:
            assert answer.status == 200
        await until_async(lambda: any(span.parent.span_id == int(PARENT, 16) for span in kept.get_finished_spans()))
        *attempts, request = kept.get_finished_spans()
    assert {format(span.context.trace_id, "032x") for span in (*attempts, request)} == {TRACE}
    assert request.name == "POST /v1/chat/completions" and request.attributes["gen_ai.usage.output_tokens"] == 3
    assert request.attributes["slipway.attempts"] == len(attempts)
    assert {span.parent.span_id for span in attempts} == {request.context.span_id}
    assert [span.attributes["slipway.attempt"] for span in attempts] == [*range(1, len(attempts) + 1)]
    assert [span.attributes["slipway.result"] for span in attempts] == ["503"] * (len(attempts) - 1) + ["ok"]
    written = [head.headers["traceparent"] for server in servers for head in server.seen]
    spans = {span.context.span_id for span in attempts}
    assert {int(header.split("-")[2], 16) for header in written} == spans and len(written) == len(attempts)


async def test_a_tenants_reservation_and_settlement_are_events_and_buckets_have_exemplars() -> None:
    key = make_key()
    async with traced(answers, tenants=[tenant("team", key)], pepper=PEPPER) as (gate, _, kept):
        async with await gate.post(headers=bearer(key)) as answer:
            assert answer.status == 200
        await until_async(lambda: len(kept.get_finished_spans()) == 2)
        request = kept.get_finished_spans()[-1]
        async with gate.client.get(
            gate.admin_url + "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
        ) as page:
            text = await page.text()
        async with gate.client.get(gate.admin_url + "/metrics") as page:
            plain = await page.text()
    assert [event.name for event in request.events] == ["quota reserved", "quota settled"]
    trace_id = format(request.context.trace_id, "032x")
    found = re.findall(r'slipway_gateway_(\w+)_seconds_bucket\{[^}]*\} \S+ # \{trace_id="(\w+)"\}', text)
    assert {*found} == {("request", trace_id), ("ttft", trace_id)}
    assert text.endswith("# EOF\n") and trace_id not in plain


async def test_a_request_that_waits_and_gets_nothing_says_so() -> None:
    async with traced() as (gate, _, kept):
        async with await gate.post() as answer:
            assert answer.status == 503
        await until_async(lambda: len(kept.get_finished_spans()) == 1)
        (request,) = kept.get_finished_spans()
    assert [event.name for event in request.events] == ["hold"]
    assert request.attributes["slipway.outcome"] == "no_endpoint" and not request.status.is_ok


async def test_a_receiver_that_is_away_delays_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of the SDK drops spans; the process ends in time all the same."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    async with (
        upstream(answers) as server,
        gateway(
            *("--routes", str(routes(tmp_path / "r.yaml", server.url)), "--trace-sample=1", "--drain-delay=0")
        ) as process,
        aiohttp.ClientSession() as client,
    ):
        for _ in range(50):
            async with client.post(process.url("api") + "/v1/chat/completions", json={"model": "chat"}) as answer:
                assert answer.status == 200
        process.process.terminate()
        assert await process.ended() == 0


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with Receiver() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.mark.integration
@pytest.mark.timeout(400)
async def test_one_trace_leads_from_the_client_over_a_broken_stream_to_the_engines_steps(
    tmp_path: Path, tiny_v1: Path, receiver: Receiver
) -> None:
    """A stream breaks because its server is killed; another one goes on. Token counts are those of the response."""
    ask = {
        "model": "tiny-v1", "prompt": "In the beginning", "max_tokens": 400, "stream": True, "ignore_eos": True,
        "stream_options": {"include_usage": True}, "temperature": 0,
    }  # fmt: skip
    # Three: a request that an engine died of, or seems to, never gets the last one.
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(tiny_v1)) for _ in range(3)]
        for server in servers:
            server.wait_ready()
        path = routes(tmp_path / "r.yaml", *(server.url for server in servers), model="tiny-v1")
        async with (
            gateway("--routes", str(path), "--trace-sample=0", "--trace-parents=5") as process,
            aiohttp.ClientSession() as client,
            client.post(process.url("api") + "/v1/completions", json=ask, headers=RECORDED) as answer,
        ):
            for _ in range(20):  # lines: a stream with that many events is not blamed for the server's end
                await answer.content.readline()
            serving = await asyncio.to_thread(_busy, servers)
            serving.process.kill()
            events = [line for line in (await answer.read()).split(b"\n") if line.startswith(b"data: {")]
            usage = json.loads(events[-1].removeprefix(b"data: "))["usage"]
            await until_async(lambda: {(service, span.kind) for service, span in receiver.services()} >= ENDED)
            made = receiver.services()
    assert usage["completion_tokens"] == 400
    ours = [(service, span) for service, span in made if span.trace_id.hex() == TRACE]
    (request,) = [span for service, span in ours if service == "slipway-gateway" and span.kind == 2]
    attempts = [span for service, span in ours if service == "slipway-gateway" and span.kind == 3]
    served = [span for service, span in ours if service == "slipway-server"]
    assert request.parent_span_id.hex() == PARENT and len(attempts) >= 2
    assert [event.name for event in request.events] == ["stream broken", "resume"]
    shown = attributes(request)
    assert (shown["gen_ai.usage.input_tokens"], shown["gen_ai.usage.output_tokens"]) == (
        usage["prompt_tokens"], usage["completion_tokens"],
    )  # fmt: skip
    (rest,) = served  # the span of the server that was killed died with it
    assert rest.parent_span_id == attempts[-1].span_id
    assert [event.name for event in rest.events] == ["queue", "prefill", "decode"]


def _busy(servers: list[ServerProcess]) -> ServerProcess:
    """The server that has the request."""
    for server in servers:
        page = get(server.url + "/metrics")[1]
        text = page.decode() if isinstance(page, bytes) else str(page)
        if re.search(r"^slipway_server_requests_in_flight\S* [1-9]", text, re.MULTILINE):
            return server
    raise AssertionError("no server has the request: the stream ended before")
