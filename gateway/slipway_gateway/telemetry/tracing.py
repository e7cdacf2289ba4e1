"""Spans of a request: one of the gateway, one of each attempt at an endpoint, and events between them.

Without a receiver nothing is made. With one the gateway chooses which requests are recorded, and servers follow it: a
share of all, up to `--trace-per-second`, and of those with a `traceparent` that wishes so as many a second as
`--trace-parents` allows, because clients could make each request cost a trace. Names are those of the semantic
conventions.
"""

import asyncio
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from slipway_process.spans import Exporter, is_tracestate

from ..quotas.gcra import Bucket, Rate
from ..quotas.usage import Usage
from . import lane_spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slipway_plane import _native

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_SAMPLED = 0x01
# Version 00 of the format; ids of zeros are invalid.
_VALID = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")

Ended = Callable[
    [str, int], None
]  # called with the result of an attempt ("ok" or why it failed) and its status (0: none)


class Finished(Protocol):
    """What is recorded of a request at its end; `telemetry.metrics.RequestRecord` has it."""

    request_id: str
    model: str
    revision: str
    code: int
    outcome: str
    attempts: int
    resumes: int
    stream: bool

    def find_usage(self) -> tuple[Usage, bool] | None: ...


def _ignored(result: str, status: int) -> None:
    pass


_NO_ATTEMPT: AbstractContextManager[Ended] = nullcontext(_ignored)


class RequestTrace:
    """One request's trace. This one records nothing and leaves the headers to servers as the client sent them."""

    trace_id = ""  # 32 hexadecimal digits of a recorded one

    def attempt(
        self, headers: MutableMapping[str, str], url: str, revision: str, number: int
    ) -> AbstractContextManager[Ended]:
        """While an endpoint has the request, up to the first bytes of its response. `headers`: those that it gets."""
        return _NO_ATTEMPT

    def event(self, name: str, **attributes: str | int) -> None:
        """Something that happened now."""

    def end(self, record: Finished, method: str, route: str) -> None:
        """The request ended. `route`: its path without what clients choose."""


UNTRACED = RequestTrace()


class UnrecordedTrace(RequestTrace):
    """The servers get a `traceparent` by which they record nothing either."""

    def __init__(self, traceparent: str, *, keeps_state: bool = False) -> None:
        self._traceparent, self._keeps_state = traceparent, keeps_state

    def attempt(
        self, headers: MutableMapping[str, str], url: str, revision: str, number: int
    ) -> AbstractContextManager[Ended]:
        headers[TRACEPARENT] = self._traceparent
        if not self._keeps_state:
            headers.pop(TRACESTATE, None)
        return _NO_ATTEMPT


class RecordedTrace(RequestTrace):
    """A span of the request, and one of each attempt."""

    def __init__(self, tracer: Any, context: Any, *, keeps_state: bool = False) -> None:
        """`context`: of the span that the client named; None without one."""
        from opentelemetry import trace

        self._keeps_state = keeps_state
        self._tracer, self._trace = tracer, trace
        self._span = tracer.start_span("request", context=context, kind=trace.SpanKind.SERVER)
        self._inside = trace.set_span_in_context(self._span)
        self.trace_id = trace.format_trace_id(self._span.get_span_context().trace_id)

    def attempt(
        self, headers: MutableMapping[str, str], url: str, revision: str, number: int
    ) -> AbstractContextManager[Ended]:
        return self._attempt(headers, url, revision, number)

    @contextmanager
    def _attempt(self, headers: MutableMapping[str, str], url: str, revision: str, number: int) -> "Iterator[Ended]":
        attributes = {"server.address": url, "slipway.revision": revision, "slipway.attempt": number}
        span = self._tracer.start_span(
            "attempt", context=self._inside, kind=self._trace.SpanKind.CLIENT, attributes=attributes
        )
        headers[TRACEPARENT] = _written(self._trace, span)
        if not self._keeps_state:
            headers.pop(TRACESTATE, None)

        def ended(result: str, status: int) -> None:
            span.set_attribute("slipway.result", result)
            if status:
                span.set_attribute("http.response.status_code", status)
            if result != "ok":
                span.set_status(self._trace.StatusCode.ERROR, result)

        try:
            yield ended
        finally:
            span.end()

    def event(self, name: str, **attributes: str | int) -> None:
        self._span.add_event(name, attributes)

    def end(self, record: Finished, method: str, route: str) -> None:
        span = self._span
        span.update_name(f"{method} {route}")
        span.set_attributes(
            {
                "http.request.method": method,
                "http.route": route,
                "http.response.status_code": record.code,
                "gen_ai.request.model": record.model,
                "slipway.request_id": record.request_id,
                "slipway.outcome": record.outcome,
                "slipway.revision": record.revision,
                "slipway.attempts": record.attempts,
                "slipway.resumes": record.resumes,
                "slipway.stream": record.stream,
            }
        )
        if found := record.find_usage():
            usage, estimated = found
            span.set_attributes(
                {
                    "gen_ai.usage.input_tokens": usage.input_tokens,
                    "gen_ai.usage.output_tokens": usage.output_tokens,
                    "slipway.usage.estimated": estimated,
                }
            )
        if record.code >= 500:
            span.set_status(self._trace.StatusCode.ERROR, record.outcome)
        span.end()


def _written(trace: Any, span: Any) -> str:
    context = span.get_span_context()
    return f"00-{trace.format_trace_id(context.trace_id)}-{trace.format_span_id(context.span_id)}-01"


class Traces:
    """Chooses which requests are recorded, and begins their traces."""

    def __init__(
        self,
        exporter_: Exporter,
        share: float,
        parents_per_s: float,
        *,
        most_per_s: int,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`share`: of all requests, and `most_per_s` of them: a share of any load would cost that share of the CPU.

        `parents_per_s`: requests a second that are recorded because their client does.
        """
        self._exporter, self._share, self.most_per_s = exporter_, share, most_per_s
        self._bucket = Bucket(Rate(most_per_s * 60, most_per_s))
        self._parents_per_s, self._clock, self._chance = parents_per_s, clock, chance
        self._second, self._followed = 0, Counter[str]()  # by client, in that second; as many as are followed

    @property
    def share(self) -> float | None:
        """Of all requests, which are recorded; None where no spans are made."""
        return None if self._exporter.tracer is None else self._share

    def begun_in_lane(self, id_: str, *, is_recorded: bool) -> RequestTrace:
        """The trace of a request without a `traceparent`, which the fast lane has sent.

        A recorded one is a child of the span that its endpoint got, so that both are in one trace.
        """
        if self._exporter.tracer is None:
            return UNTRACED
        if is_recorded:
            parent = {TRACEPARENT: f"00-{id_}-{id_[:16]}-01"}
            return RecordedTrace(self._exporter.tracer, _context(parent, keeps_state=False), keeps_state=True)
        return UnrecordedTrace(_unrecorded(id_, id_[:16]), keeps_state=True)

    def ended_in_lane(self, entry: "_native.LogEntry") -> None:
        """Makes the spans of a request that the fast lane ended, and has recorded."""
        if self._exporter.tracer is not None:
            lane_spans.record(self._exporter.tracer, entry)

    def begin(self, headers: Mapping[str, str], id_: str, *, client: str = "") -> RequestTrace:
        """The trace of a request. `id_`: 32 hexadecimal digits by chance, of the gateway's own for this request.

        `client`: who sent it; of those that wish to be recorded no more than half are one client's.
        """
        if self._exporter.tracer is None:
            return UNTRACED
        sent = headers.get(TRACEPARENT)
        parent = _VALID.fullmatch(sent) if sent else None
        keeps_state = parent is not None and is_tracestate(headers.get(TRACESTATE, ""))
        if self._is_of_share() or (parent and self._follows(parent, client)):
            context = _context(headers, keeps_state=keeps_state) if parent else None
            return RecordedTrace(self._exporter.tracer, context, keeps_state=keeps_state)
        ids = parent.group(1, 2) if parent else (id_, id_[:16])
        return UnrecordedTrace(_unrecorded(*ids), keeps_state=keeps_state or sent is None)

    def _is_of_share(self) -> bool:
        """Whether the request is one of the share, and there is room for one more."""
        if self._chance() >= self._share or self._bucket.wait_s(1, now_s := self._clock()):
            return False
        self._bucket.take(1, now_s)
        return True

    def _follows(self, parent: re.Match[str], client: str) -> bool:
        """Whether the client records the request, and there is room for one more of those in this second."""
        if not int(parent[3], 16) & _SAMPLED:
            return False
        if (second := int(self._clock())) != self._second:
            self._second = second
            self._followed.clear()
        share = math.ceil(self._parents_per_s / 2)
        if self._followed.total() >= math.ceil(self._parents_per_s) or self._followed[client] >= share:
            return False
        self._followed[client] += 1
        return True

    async def close(self) -> None:
        """Sends the spans that wait, for some seconds at most."""
        await asyncio.to_thread(self._exporter.close)


def _unrecorded(trace_id: str, span_id: str) -> str:
    return f"00-{trace_id}-{span_id}-00"


def _context(headers: Mapping[str, str], *, keeps_state: bool) -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    names = (TRACEPARENT, TRACESTATE) if keeps_state else (TRACEPARENT,)
    sent = {name: headers[name] for name in names}
    return TraceContextTextMapPropagator().extract(sent)
