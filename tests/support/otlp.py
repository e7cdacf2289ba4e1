"""A receiver of spans by OTLP over HTTP, which keeps what the real exporters of our processes send."""

import http.server
import threading
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """Takes /v1/traces on a port of this machine, until its `with` block ends."""

    def __init__(self) -> None:
        self._bodies: list[bytes] = []
        bodies = self._bodies

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                bodies.extend([body] if self.path == "/v1/traces" else [])
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """No log lines."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> "Receiver":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which a process sends its spans here, soon after they end."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def services(self) -> list[tuple[str, Any]]:
        """Each span with the service that made it, in the order in which they came."""
        return [
            (attributes(resource.resource)["service.name"], span)
            for body in list(self._bodies)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def spans(self) -> list[Any]:
        return [span for _, span in self.services()]


def attributes(node: Any) -> dict[str, Any]:
    """Attributes of a span, an event or a resource."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in node.attributes}
