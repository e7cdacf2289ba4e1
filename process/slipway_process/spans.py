"""Where spans of OpenTelemetry go: by OTLP over HTTP, in batches from a thread of the SDK, which holds 2,048 at most.

More spans are dropped, so that a slow receiver delays no request. The SDK itself reads OTEL_SERVICE_NAME, and the
exporter's headers, certificates and limits, from the environment.
"""

import logging
import re
from typing import Annotated, Any

from slipway_process.values import Flag, Variable

NOT_INSTALLED = "no spans are sent: install slipway[tracing], opentelemetry is missing"
# Settings that the SDK reads from the environment too, so that they have no flag.
Endpoint = Annotated[str, Flag(""), Variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")]
Service = Annotated[str, Flag(""), Variable("OTEL_SERVICE_NAME")]
FLUSH_MS = 2_000
_MEMBER = r"[a-z0-9][a-z0-9_*/-]{0,240}(?:@[a-z0-9][a-z0-9_*/-]{0,13})?=[ -+\--<>-~]{0,255}[!-+\--<>-~]"
_STATE = re.compile(rf"{_MEMBER}(?:[ \t]*,[ \t]*{_MEMBER}){{0,31}}")
LONGEST_STATE = 512  # characters that the specification wants each hop to pass on

log = logging.getLogger("slipway")


def is_tracestate(header: str) -> bool:
    """Whether a header is a `tracestate`. The SDK writes what is none into the log: clients would fill it."""
    return len(header) <= LONGEST_STATE and _STATE.fullmatch(header) is not None


class Exporter:
    """A tracer and what ends it. `tracer`: None where no spans are made."""

    def __init__(self, provider: Any = None, name: str = "") -> None:
        self._provider = provider
        self.tracer: Any = provider.get_tracer(name) if provider is not None else None

    def close(self) -> None:
        """Sends what waits, for FLUSH_MS at most, and ends the thread. It blocks."""
        if self._provider is not None:
            self._provider.force_flush(FLUSH_MS)
            self._provider.shutdown()


def exporter(endpoint: str, default_service: str, service: str = "", *, sampler: Any = None) -> Exporter:
    """Exports spans to `endpoint`, which the SDK reads from the environment itself; without one, or the SDK, none.

    Args:
        default_service: name of the service where OTEL_SERVICE_NAME, which is `service`, names none.
        sampler: of the SDK; None: the one that OTEL_TRACES_SAMPLER names.
    """
    if not endpoint:
        return Exporter()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning(NOT_INSTALLED)
        return Exporter()
    named = {} if service else {"service.name": default_service}
    provider = TracerProvider(sampler=sampler, resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Exporter(provider, default_service.replace("-", "_"))
