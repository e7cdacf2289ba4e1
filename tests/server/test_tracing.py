"""Spans: none without an endpoint; with one, a request's own under its caller's, with its phases."""

import sys
import threading
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider

from slipway_process import spans
from slipway_process.serving import tracing
from slipway_process.serving.tracing import Timing
from testkit.until import until
from tests.server.process import ServerProcess, get, post
from tests.support.otlp import Receiver

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
    assert spans.NOT_INSTALLED in caplog.text


@pytest.mark.parametrize("state", ["a", "a=\udcff", "a=1," * 40, "x" * 9000])
def test_a_malformed_tracestate_is_in_no_log(state: str, caplog: pytest.LogCaptureFixture) -> None:
    made = tracing.Tracing(TracerProvider().get_tracer("test"), "chat")
    with made.request({"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": state}, "POST", "/") as ended:
        ended("completed", 200)
    assert caplog.text == ""


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_request_is_a_span_under_its_callers(tiny_v1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = {"model": "tiny-v1", "prompt": "In the beginning", "max_tokens": 4}
    with Receiver() as receiver:
        for name, value in receiver.environment.items():
            monkeypatch.setenv(name, value)
        with ServerProcess(tiny_v1) as server:
            server.wait_ready()
            assert get(server.url + "/metrics")[0] == 200
            traceparent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            assert post(server.url + "/v1/completions", ask, traceparent)[0] == 200
            assert post(server.url + "/v1/completions", ask | {"max_tokens": -1})[0] == 400
            served, refused = until(lambda: receiver.spans() if len(receiver.spans()) == 2 else [], "two spans")
    assert (served.trace_id.hex(), served.parent_span_id.hex()) == (TRACE, PARENT)
    assert (served.name, served.kind) == ("POST /v1/completions", 2)
    assert [event.name for event in served.events] == ["queue", "prefill", "decode"]
    times = [served.start_time_unix_nano, *(event.time_unix_nano for event in served.events)]
    assert times == sorted(times) and times[-1] <= served.end_time_unix_nano
    about = {item.key: item.value for item in served.attributes}
    assert about["slipway.outcome"].string_value == "completed"
    assert about["http.response.status_code"].int_value == 200
    assert refused.trace_id.hex() != TRACE and not refused.events
