"""Spans of requests that the fast lane ended: both are made of its times afterwards."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipway_plane import _native

_NS = 1_000_000_000


def record(tracer: Any, entry: "_native.LogEntry") -> None:
    """Sends the span of a request and that of its attempt. `tracer`: of the SDK; `entry`: of a recorded request.

    A request that got a copy of a kept response has no attempt.
    """
    from opentelemetry.trace import SpanKind

    trace_id, request_id, attempt_id = int(entry.id, 16), int(entry.id[16:], 16), int(entry.id[:16], 16)
    began_s = entry.ended_s - entry.seconds
    answered_s = entry.ended_s if entry.ttft_s is None else began_s + entry.ttft_s
    is_ok = entry.outcome == "ok"
    attempt = {
        "server.address": entry.upstream,
        "slipway.revision": entry.revision,
        "slipway.attempt": 1,
        "slipway.result": "ok" if is_ok else entry.outcome,
    }
    if is_ok:
        attempt["http.response.status_code"] = entry.code
    request = _context(trace_id, request_id)
    within = (began_s + entry.waited_s, answered_s)
    if not entry.is_hit:
        _send(tracer, "attempt", _context(trace_id, attempt_id), request, SpanKind.CLIENT, attempt, within)
    whole = (began_s, entry.ended_s)
    route = _route(entry.path)
    events = (("cache hit", began_s),) if entry.is_hit else ()
    _send(tracer, f"POST {route}", request, None, SpanKind.SERVER, _attributes(entry, route), whole, events=events)


def _attributes(entry: "_native.LogEntry", route: str) -> dict[str, Any]:
    found = {
        "http.request.method": "POST",
        "http.route": route,
        "http.response.status_code": entry.code,
        "gen_ai.request.model": entry.model,
        "slipway.request_id": entry.request_id,
        "slipway.outcome": entry.outcome,
        "slipway.revision": entry.revision,
        "slipway.attempts": 0 if entry.is_hit else 1,
        "slipway.resumes": 0,
        "slipway.stream": False,
    }
    if entry.tokens is not None:
        found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"] = entry.tokens
        found["slipway.usage.estimated"] = False
    return found


def _route(path: str) -> str:
    """The path without the name of a model, as Python's routes have it."""
    if path.startswith("/v2/models/"):
        return "/v2/models/{name:.+}/infer"
    return "/v1/models/{name:.+}:predict" if path.startswith("/v1/models/") else path


def _context(trace_id: int, span_id: int) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _send(
    tracer: Any, name: str, context: Any, parent: Any, kind: Any, attributes: dict[str, Any],
    between_s: tuple[float, float], *, events: Sequence[tuple[str, float]] = (),
) -> None:  # fmt: skip
    """`between_s`: Unix time of its begin and of its end. `events`: with theirs."""
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    start, end = (round(second * _NS) for second in between_s)
    scope = InstrumentationScope("slipway_gateway")
    made = ReadableSpan(
        name, context, parent, tracer.resource, attributes, kind=kind, start_time=start, end_time=end,
        instrumentation_scope=scope, events=[Event(name, timestamp=round(at_s * _NS)) for name, at_s in events],
    )  # fmt: skip
    tracer.span_processor.on_end(made)
