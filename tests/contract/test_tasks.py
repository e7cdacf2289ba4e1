"""No background task ends in silence: long-lived ones have a supervisor, and each other one has who sees its end."""

import ast
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from testkit import ROOT

from .test_forbidden_calls import SOURCES

pytestmark = pytest.mark.finding("F4")

# What starts something that runs beside its caller; in a TaskGroup too.
STARTS = frozenset({"create_task", "ensure_future", "Thread", "Timer", "run_coroutine_threadsafe"})
SUPERVISOR = "process/slipway_process/supervisor.py"

HERE = "the function that starts it awaits it, or ends it"
REQUEST = "one for a request: who sends it awaits it, and has its exception as the response"
LOGGED = "one for a request or an object: an exception at its end is logged, and the others go on"
LIFE = (
    "what the process is there for: keep_running or the supervisor starts its parts again, and its end is the process's"
)
KEPT = "its loop is kept by keep_thread"


class Site(NamedTuple):
    """`calls` of one function, and who sees the ends of what it starts."""

    calls: int
    why: str


ALLOWED = {
    "cli/slipway_cli/bench/load.py Load.step": Site(1, HERE),
    "operator/slipway_operator/fetching/reader.py DownloadReader.read": Site(1, LOGGED),
    "operator/slipway_operator/hooks/runner.py HookRunner.follow": Site(1, LOGGED),
    "operator/slipway_operator/hooks/runner.py HookRunner.notify": Site(1, LOGGED),
    "operator/slipway_operator/metrics_api/sampler.py _for_a_period": Site(1, HERE),
    "operator/slipway_operator/pools/runner.py PoolRunner._reports": Site(1, HERE),
    "operator/slipway_operator/adapters/runner.py AdapterRunner._reports": Site(1, HERE),
    "operator/slipway_operator/registry/runner.py RegistryRunner._start": Site(1, LOGGED),
    "operator/slipway_operator/providers/runner.py MeasurementRunner.follow": Site(1, LOGGED),
    "operator/slipway_operator/providers/runner.py MeasurementRunner._end": Site(1, LOGGED),
    "gateway/slipway_gateway/authentication/service_accounts.py ServiceAccountTokens._begin": Site(1, LOGGED),
    "gateway/slipway_gateway/forwarding/guarded_response.py _GuardedWriter._begin_late": Site(1, REQUEST),
    "gateway/slipway_gateway/guards/workers.py FinderPool._load": Site(1, LOGGED),
    "gateway/slipway_gateway/grpc_api/streams.py InferStream.run": Site(2, HERE),
    "gateway/slipway_gateway/grpc_api/streams.py InferStream._read": Site(1, REQUEST),
    "gateway/slipway_gateway/http2/connection.py Http2Connection._begin_stream": Site(1, LOGGED),
    "gateway/slipway_gateway/websocket_api/connection.py StreamConnection.serve": Site(1, LOGGED),
    "gateway/slipway_gateway/websocket_api/connection.py StreamConnection.close": Site(1, LOGGED),
    "gateway/slipway_gateway/websocket_api/connection.py StreamConnection._begin": Site(1, LOGGED),
    "gateway/slipway_gateway/mirror/quality.py PairComparison.compare": Site(1, HERE),
    "gateway/slipway_gateway/mirror/queue.py MirrorQueue._start": Site(1, LOGGED),
    "gateway/slipway_gateway/mirror/queue.py MirrorQueue._ask_all": Site(1, HERE),
    "gateway/slipway_gateway/mirror/twins.py TwinShadows._start": Site(1, LOGGED),
    "gateway/slipway_gateway/mirror/twins.py TwinShadows._run": Site(1, HERE),
    "gateway/slipway_gateway/plane/port.py PlanePort._take_news": Site(1, LOGGED),
    "gateway/slipway_gateway/routing/cluster.py ClusterSource.run": Site(
        2, "a group whose task the supervisor has: the end of one ends all, and they start again together"
    ),
    "gateway/slipway_gateway/serving/tls.py Handshake.connection_made": Site(1, LOGGED),
    "gateway/slipway_gateway/sharing/redis_client.py _Sentinels.discover_master": Site(1, HERE),
    "gateway/slipway_gateway/telemetry/line_writer.py LineWriter.__init__": Site(1, KEPT),
    "gateway/slipway_gateway/upstream/session.py lag_free_timeout": Site(1, HERE),
    "jobs/slipway_jobs/dispatch/dispatcher.py Dispatcher._validate": Site(
        1, "the next turn of the supervised dispatcher reads its result, and logs its exception"
    ),
    "jobs/slipway_jobs/dispatch/dispatcher.py Dispatcher._begin": Site(1, LOGGED),
    "jobs/slipway_jobs/serving/idempotency.py IdempotentRequests._claimed": Site(1, LOGGED),
    "jobs/slipway_jobs/webhooks/deliverer.py Deliverer._claim": Site(1, LOGGED),
    "server/slipway_fetcher/objects/proxy.py GuardedProxy.__init__": Site(1, KEPT),
    "server/slipway_server/engine/adapters/loader.py AdapterLoader.load": Site(1, KEPT),
    "server/slipway_server/http/adapters.py commands.answering.answer": Site(1, REQUEST),
    "server/slipway_server/http/debug.py profiles.answer": Site(1, HERE),
    "server/slipway_server/http/openai.py generate_all": Site(1, HERE),
    "server/slipway_predict/http/pool/app.py serve": Site(1, LIFE),
    "server/slipway_predict/http/app.py serve": Site(1, LIFE),
    "process/slipway_process/serving/probes.py ProbeServer.__init__": Site(1, KEPT),
    "server/slipway_server/http/reading/processes.py Processes._retire": Site(1, LOGGED),
    "server/slipway_server/http/reading/processes.py Processes.ask": Site(1, REQUEST),
    "server/slipway_server/http/responses/replay.py ReplayStore.answer": Site(1, REQUEST),
    "server/slipway_server/http/responses/sse.py stream_events": Site(1, LOGGED),
    "server/slipway_server/http/service.py gather_all": Site(1, HERE),
    "process/slipway_process/serving/server.py _drain": Site(1, HERE),
    "process/slipway_process/serving/server.py run_server": Site(1, HERE),
    "server/slipway_server/kernels/pages.py populate": Site(
        2, "threads that end when the pages are there; without them a page comes at its first use"
    ),
    "server/slipway_server/language.py run": Site(1, LIFE),
    "server/slipway_fetcher/pool/follow.py PoolFolder.look": Site(1, LOGGED),
    "server/slipway_predict/executor.py Executor._serve": Site(1, HERE),
    "server/slipway_predict/pool/loading.py ModelLoader._end": Site(1, LOGGED),
    "server/slipway_predict/pool/resident.py Resident.start": Site(
        1, "the life of one model, which keep_running starts again; its loader sees its end, and loads it anew"
    ),
    "server/slipway_predict/pool/resident.py Resident.until_available": Site(1, HERE),
    "server/slipway_predict/process/workers.py Workers._retire": Site(1, LOGGED),
    "server/slipway_predict/process/workers.py Workers.run": Site(1, REQUEST),
    "server/slipway_fetcher/pages.py served": Site(1, KEPT),
    "server/slipway_fetcher/adapters/follow.py AdapterLoader._advance": Site(4, LOGGED),
    "server/slipway_fetcher/adapters/follow.py AdapterLoader._remove": Site(1, LOGGED),
    "gateway/slipway_gateway/upstream/adapter_reports.py AdapterReports.read_due": Site(1, HERE),
}


def sites(source: str) -> Counter[str]:
    """The functions of a file that start tasks or threads, with how often each does."""
    return Counter(_found(ast.parse(source), ""))


def _found(node: ast.AST, name: str) -> Iterator[str]:
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in STARTS:
        yield name or "the module"
    for child in ast.iter_child_nodes(node):
        inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from _found(child, f"{name}.{child.name}".lstrip(".") if inner else name)  # type: ignore[attr-defined]


def test_what_starts_a_task_is_found_in_every_spelling() -> None:
    source = """
class A:
    async def run(self):
        asyncio.create_task(f())
        async with asyncio.TaskGroup() as group:
            group.create_task(f())
        self._loop.create_task(f()), ensure_future(f())
        def inner():
            threading.Thread(target=f)
Thread(target=f)
"""
    assert sites(source) == {"A.run": 4, "A.run.inner": 1, "the module": 1}


def test_each_task_has_a_supervisor_or_who_sees_its_end() -> None:
    found = Counter[str]()
    for path in SOURCES:
        where = str(path.relative_to(ROOT))
        if where != SUPERVISOR:
            found.update({f"{where} {name}": calls for name, calls in sites(path.read_text()).items()})
    new = [site for site, calls in found.items() if calls > (ALLOWED[site].calls if site in ALLOWED else 0)]
    assert not new, (
        f"{', '.join(sorted(new))}: a task or thread starts here. One that lives as long as the process belongs to "
        "Supervisor.start, with what follows when it fails again and again; a thread's loop to keep_thread. For one of "
        "a request or an object, await it or log its exception (`observe`), then list the function in ALLOWED with why."
    )
    gone = [site for site, allowed in ALLOWED.items() if found[site] < allowed.calls]
    assert not gone, f"these start fewer tasks than ALLOWED has, correct it: {', '.join(gone)}"
