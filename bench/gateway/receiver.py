"""A receiver of spans by OTLP over HTTP, on a core that is not measured: it counts what comes.

`python -m bench.gateway.receiver PORT` takes /v1/traces; GET /spans says how many spans each service sent.
"""

import asyncio
import contextlib
import json
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from bench import processes
from bench.processes import free_port

_MOST_BYTES = 64 << 20


def app() -> web.Application:
    counted: Counter[str] = Counter()

    async def take(request: web.Request) -> web.Response:
        for resource in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            names = [item.value.string_value for item in resource.resource.attributes if item.key == "service.name"]
            counted[names[0] if names else ""] += sum(len(scope.spans) for scope in resource.scope_spans)
        return web.Response()

    async def show(_: web.Request) -> web.Response:
        return web.json_response(counted)

    made = web.Application(client_max_size=_MOST_BYTES)
    made.add_routes([web.post("/v1/traces", take), web.get("/spans", show)])
    return made


def spans(url: str) -> dict[str, int]:
    """How many came so far, by service. Raises OSError where the receiver is away."""
    with urllib.request.urlopen(f"{url}/spans", timeout=10) as reply:
        counted: dict[str, int] = json.load(reply)
    return counted


@contextlib.contextmanager
def running(core: int, folder: Path) -> Iterator[str]:
    """Its URL. Raises Unavailable when it does not get ready."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        with contextlib.suppress(OSError):
            return spans(url) is not None
        return False

    command = [sys.executable, "-m", "bench.gateway.receiver", str(port)]
    with processes.started("receiver", command, url, core, folder / "receiver.log", is_ready):
        yield url


async def main(port: int) -> None:
    runner = web.AppRunner(app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
