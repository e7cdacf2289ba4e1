"""Spans: none without an endpoint; with one, a request's own under its caller's, with its phases."""

import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway_process.serving import tracing
from slipway_process.serving.tracing import Timing
from testkit.until import until
from tests.server.process import ServerProcess, get, post

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.finding(26)
def test_without_an_endpoint_nothing_is_traced() -> None:
    """Safety 26: it asserted nothing. Neither is there a span, nor anything that would send one."""
    from opentelemetry import trace

    before = {thread.name for thread in threading.enumerate()}
    off = tracing.tracing("", "chat")
    with off.request({"traceparent": f"00-{TRACE}-{PARENT}-01"}, "POST", "/v1/completions") as ended:
        assert trace.get_current_span() is trace.INVALID_SPAN
        off.phases(Timing(3))
        ended("completed", 200)
    assert {thread.name for thread in threading.enumerate()} == before


def test_without_the_package_a_server_serves_and_logs_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    made = tracing.tracing("http://127.0.0.1:1", "chat")
    with made.request({}, "POST", "/") as ended:
        ended("completed", 200)
    assert tracing.NOT_INSTALLED in caplog.text


class Collector:
    """Takes what an exporter sends to /v1/traces."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.bodies += [body] if self.path == "/v1/traces" else []
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """No log lines."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_request_is_a_span_under_its_callers(
    tiny_v1: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_pb2 = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    ask = {"model": "tiny-v1", "prompt": "In the beginning", "max_tokens": 4}
    with ServerProcess(tiny_v1) as server:
        server.wait_ready()
        assert get(server.url + "/metrics")[0] == 200
        traceparent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        assert post(server.url + "/v1/completions", ask, traceparent)[0] == 200
        assert post(server.url + "/v1/completions", ask | {"max_tokens": -1})[0] == 400

        def spans() -> list:  # type: ignore[type-arg]
            sent = [trace_pb2.ExportTraceServiceRequest.FromString(body) for body in collector.bodies]
            received = [s for one in sent for r in one.resource_spans for scope in r.scope_spans for s in scope.spans]
            return received if len(received) == 2 else []

        served, refused = until(spans, "two spans")
    assert (served.trace_id.hex(), served.parent_span_id.hex()) == (TRACE, PARENT)
    assert (served.name, served.kind) == ("POST /v1/completions", 2)
    assert [event.name for event in served.events] == ["queue", "prefill", "decode"]
    times = [served.start_time_unix_nano, *(event.time_unix_nano for event in served.events)]
    assert times == sorted(times) and times[-1] <= served.end_time_unix_nano
    about = {item.key: item.value for item in served.attributes}
    assert about["slipway.outcome"].string_value == "completed"
    assert about["http.response.status_code"].int_value == 200
    assert refused.trace_id.hex() != TRACE and not refused.events
