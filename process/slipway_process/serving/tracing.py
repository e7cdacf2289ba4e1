"""One OpenTelemetry span for each API request, with the phases in the engine as events; none without an endpoint.

Names are those of the semantic conventions for HTTP and for generative AI. OTEL_TRACES_SAMPLER chooses which requests
without a `traceparent` have one.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from slipway_process.spans import exporter, is_tracestate

Ended = Callable[[str, int], None]  # called with the outcome of the request and the status of its response (0: none)


def _not_recorded(outcome: str, status: int) -> None:
    pass


_NO_SPAN = nullcontext(_not_recorded)  # shared: to make a context manager for each request takes microseconds


@dataclass(slots=True)
class Timing:
    """When a request reached each phase in the engine (monotonic seconds), its tokens, and how it ended."""

    prompt_tokens: int
    submitted_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    output_tokens: int = 0
    finish: str = "abort"


class Tracing:
    """Makes spans of requests. Without a tracer, its methods do nothing."""

    def __init__(self, tracer: Any = None, model: str = "") -> None:
        self._tracer, self._model = tracer, model

    def request(self, headers: Mapping[str, str], method: str, route: str) -> AbstractContextManager[Ended]:
        """Opens a server span around a request, as a child of the span that the `traceparent` header names.

        Its value is a function that records the request's outcome and the status of its response.
        """
        return _NO_SPAN if self._tracer is None else self._span(headers, method, route)

    @contextmanager
    def _span(self, headers: Mapping[str, str], method: str, route: str) -> Iterator[Ended]:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        given = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        if not is_tracestate(given.get("tracestate", "")):
            given.pop("tracestate", None)
        about = {"http.request.method": method, "http.route": route, "gen_ai.request.model": self._model}
        with self._tracer.start_as_current_span(
            f"{method} {route}",
            context=TraceContextTextMapPropagator().extract(given),
            kind=trace.SpanKind.SERVER,
            attributes=about,
            # A client that disconnects is not an error of the server: `_end` distinguishes it.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield lambda outcome, status: _end(span, outcome, status)

    def phases(self, timing: Timing) -> None:
        """Adds events for the phases queue, prefill and decode to the current span, at the times when they began."""
        if self._tracer is None:
            return
        from opentelemetry import trace

        span, now_ns, now_s = trace.get_current_span(), time.time_ns(), time.monotonic()
        begins = {"queue": timing.submitted_s, "prefill": timing.started_s, "decode": timing.first_s}
        tokens = {"prompt_tokens": timing.prompt_tokens, "output_tokens": timing.output_tokens}
        for phase, begin_s in begins.items():
            if begin_s is not None:
                span.add_event(phase, tokens, timestamp=now_ns - int((now_s - begin_s) * 1e9))


def _end(span: Any, outcome: str, status: int) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("slipway.outcome", outcome)
    if status:
        span.set_attribute("http.response.status_code", status)
    if outcome == "error":
        span.set_status(StatusCode.ERROR)


def tracing(endpoint: str, model: str, service: str = "") -> Tracing:
    """Spans of the requests for `model`, sent to `endpoint`; without one or the SDK, no spans are made."""
    return Tracing(exporter(endpoint, "slipway-server", service).tracer, model)
