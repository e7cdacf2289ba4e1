"""The gateway and its peers as processes: how each is had, started on its core, and found ready."""

import contextlib
import json
import shutil
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from bench import processes
from bench.engine.environments import Environment, Unavailable, debian, ensure, of_packages, python_of
from bench.gateway.metered import KEY, PEPPER_FILE
from bench.processes import Cores, Program, free_port
from devcluster.errors import DevclusterError

# The proxy extra of later versions requires a package that not every index has.
LITELLM = "litellm[proxy]==1.108.7"
ROUTER = "vllm-router==0.1.17"  # of the vLLM project; production-stack's own router is another one
MODEL = "m"

_NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_rlimit_nofile 65536;
events {{ worker_connections 16384; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream server {{ server {upstream}; keepalive 64; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096; keepalive_requests 1000000000;
    location / {{
      proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """`prepare`: makes what it needs, once. `command`: from a folder of its own, its port and the upstream's URL."""

    name: str
    title: str
    command: Callable[[Path, int, str], Sequence[str | Path]]
    prepare: Callable[[Console], object] = lambda console: None
    key: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})


def _slipway(folder: Path, port: int, upstream: str) -> Sequence[str | Path]:
    return [sys.executable, "-m", "slipway_gateway", *_flags(folder, port, upstream)]


def _metered(folder: Path, port: int, upstream: str) -> Sequence[str | Path]:
    pepper = folder / "pepper"
    pepper.write_bytes(PEPPER_FILE)
    tenants = ["--auth-mode=required", f"--key-pepper-file={pepper}", f"--ledger-url=sqlite:///{folder / 'ledger.db'}"]
    return [sys.executable, "-m", "bench.gateway.metered", *_flags(folder, port, upstream), *tenants]


def _flags(folder: Path, port: int, upstream: str) -> Sequence[str]:
    routes = folder / "routes.json"
    routes.write_text(json.dumps({"models": {MODEL: {"backends": [{"endpoints": [upstream]}]}}}))
    where = ["--host=127.0.0.1", f"--port={port}", "--admin-host=127.0.0.1", "--admin-port=0", "--drain-delay=0"]
    return [f"--routes={routes}", *where]


def _own(module: str) -> Callable[[Path, int, str], Sequence[str | Path]]:
    return lambda folder, port, upstream: [sys.executable, "-m", f"bench.gateway.{module}", str(port), upstream]


def nginx() -> Environment:
    return debian("nginx", "nginx")


def wrk() -> Environment:
    return debian("wrk", "wrk", "libluajit-5.1-2", "libluajit2-5.1-2")


def litellm() -> Environment:
    return of_packages("litellm", LITELLM, size_gb=1.5)


def vllm_router() -> Environment:
    return of_packages("vllm-router", ROUTER, size_gb=0.3)


def _nginx(folder: Path, port: int, upstream: str) -> Sequence[str | Path]:
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, port=port, upstream=upstream.partition("//")[2]))
    system = shutil.which("nginx")
    program = Path(system) if system else nginx().folder / "files" / "usr" / "sbin" / "nginx"
    return [program, "-p", folder, "-c", config]


def _prepare_nginx(console: Console) -> None:
    if not shutil.which("nginx"):
        ensure(nginx(), console)


def _litellm(folder: Path, port: int, upstream: str) -> Sequence[str | Path]:
    config = folder / "litellm.json"
    params = {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "none"}
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": params}]}))
    program = python_of(litellm().folder).parent / "litellm"
    where = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    # Otherwise it fetches its table of prices, writes a line for each request, and does not start without a master key.
    settings = ["LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_LOG=ERROR"]
    settings.append("LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true")
    return ["env", *settings, program, "--config", config, *where]


def _router(folder: Path, port: int, upstream: str) -> Sequence[str | Path]:
    program = python_of(vllm_router().folder).parent / "vllm-router"
    where = [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--worker-urls",
        upstream,
        "--prometheus-port",
        str(free_port()),
    ]
    limits = ["--max-concurrent-requests", "8192", "--queue-size", "8192"]
    return [program, *where, "--policy", "round_robin", "--log-level", "error", *limits]


PEERS = {
    peer.name: peer
    for peer in (
        Peer("slipway", "Slipway gateway", _slipway),
        Peer("keys", "Slipway gateway with keys, limits and ledger", _metered, key=KEY),
        Peer("nginx", "nginx", _nginx, _prepare_nginx),
        Peer("aiohttp", "bare aiohttp proxy", _own("bare")),
        Peer("pipe", "asyncio, bytes alone (ceiling)", _own("pipe")),
        Peer("vllm-router", "vLLM router (Rust)", _router, lambda console: ensure(vllm_router(), console)),
        Peer("litellm", "LiteLLM proxy", _litellm, lambda console: ensure(litellm(), console)),
    )
}


@contextlib.contextmanager
def upstream(cores: Cores, folder: Path) -> Iterator[str]:
    """URL of the model server that all peers forward to."""
    peer = Peer("upstream", "upstream", lambda folder, port, _: _own("upstream")(folder, port, "")[:-1])
    with started(peer, "", cores.load, folder) as program:
        yield program.url


@contextlib.contextmanager
def started(peer: Peer, upstream_url: str, core: int, folder: Path) -> Iterator[Program]:
    """One program on one core. Raises Unavailable with the end of its log when it does not get ready."""
    own, port = folder / peer.name, free_port()
    own.mkdir(exist_ok=True)
    url = f"http://127.0.0.1:{port}"
    command, ready = peer.command(own, port, upstream_url), partial(_is_ready, url, peer.headers)
    with processes.started(peer.name, command, url, core, own / "log", ready, headers=peer.headers) as program:
        yield program


def _is_ready(url: str, headers: Mapping[str, str]) -> bool:
    """Whether a request is answered by the upstream."""
    body = b'{"model":"%s","messages":[{"role":"user","content":"hello"}]}' % MODEL.encode()
    sent = urllib.request.Request(f"{url}/v1/chat/completions", body, dict(headers))
    with contextlib.suppress(OSError), urllib.request.urlopen(sent, timeout=10) as reply:
        return bool(reply.status == 200)
    return False


def prepare(peer: Peer, console: Console) -> None:
    """Raises Unavailable with the reason."""
    try:
        peer.prepare(console)
    except DevclusterError as error:
        raise Unavailable(str(error)) from error
