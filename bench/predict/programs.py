"""Our server and its peers as processes: how each is had, started with a model, and found ready."""

import contextlib
import json
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from bench import processes
from bench.engine.environments import Environment, Unavailable, ensure, of_packages, python_of
from bench.predict.load import Target
from bench.predict.models import ModelFile, plain_body, protocol_body
from bench.processes import Program, free_port
from devcluster.errors import DevclusterError
from testkit import ROOT

APPS = "bench.predict.apps"
BATCH_ROWS = 64
NAME = "m"
INFER = f"/v2/models/{NAME}/infer"


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a peer. `grpc_port`: of those that serve gRPC. `batch`: rows of a batch at most; 1: no batches."""

    folder: Path
    port: int
    grpc_port: int
    file: Path
    batch: int


@dataclass(frozen=True, slots=True)
class Peer:
    """`pins`: packages of its own environment; none: ours. `python`: versions of Python that it runs on; "": as ours.
    `protocol`: it takes the Open Inference Protocol; `grpc`: on a port of its own too."""

    name: str
    title: str
    command: Callable[[Start], Sequence[str | Path]]
    pins: tuple[str, ...] = ()
    python: str = ""
    protocol: bool = False
    grpc: bool = False
    batches: bool = True
    size_gb: float = 1.0
    # What it is compared with has a bar.
    has_bar: bool = True

    @property
    def path(self) -> str:
        return INFER if self.protocol else "/predict"

    def body(self, model: ModelFile) -> bytes:
        return protocol_body(model) if self.protocol else plain_body(model)


def _runtimes(pins: Sequence[str]) -> tuple[str, ...]:
    """The same in all environments, and what our server has; but numpy where the pins have another one."""
    names = ["onnxruntime", "xgboost-cpu", *(["numpy"] if not any(pin.startswith("numpy") for pin in pins) else [])]
    return tuple(f"{name}=={version(name)}" for name in names)


def _environment(peer: Peer) -> Environment:
    return of_packages(
        f"predict-{peer.name}", *peer.pins, *_runtimes(peer.pins), size_gb=peer.size_gb, python=peer.python
    )


def _program(name: str) -> Path:
    return python_of(_environment(PEERS[name]).folder).parent / name


def _app(name: str, module: str) -> Callable[[Start], Sequence[str | Path]]:
    return lambda start: [python_of(_environment(PEERS[name]).folder), "-m", f"{APPS}.{module}", str(start.port)]


def _slipway(start: Start) -> Sequence[str | Path]:
    flags = ["--task=predict", f"--served-model-name={NAME}", f"--max-batch-size={start.batch}"]
    where = ["--host=127.0.0.1", f"--port={start.port}", "--probe-port=0"]
    return [sys.executable, "-m", "slipway_server", "--model", start.file.parent, *flags, *where]


def _mlserver(start: Start) -> Sequence[str | Path]:
    ports = {"http_port": start.port, "grpc_port": start.grpc_port, "metrics_port": free_port()}
    settings = {"host": "127.0.0.1", "parallel_workers": 0, "debug": False, **ports}
    (start.folder / "settings.json").write_text(json.dumps(settings))
    # With a time of 0 it has no batches.
    batches = {"max_batch_size": start.batch, "max_batch_time": 0.005 if start.batch > 1 else 0}
    model = {"name": NAME, "implementation": f"{APPS}.mlserver_app.Model", **batches}
    (start.folder / NAME).mkdir(exist_ok=True)
    (start.folder / NAME / "model-settings.json").write_text(json.dumps(model))
    return [_program("mlserver"), "start", start.folder]


def _pytriton(start: Start) -> Sequence[str | Path]:
    return [*_app("pytriton", "pytriton_app")(start), str(start.grpc_port)]


def _bentoml(start: Start) -> Sequence[str | Path]:
    where = ["--host", "127.0.0.1", "--port", str(start.port), "--working-dir", str(ROOT)]
    return ["env", "BENTOML_DO_NOT_TRACK=True", _program("bentoml"), "serve", f"{APPS}.bentoml_app:Model", *where]


LITSERVE = "litserve==0.2.19"
PEERS = {
    peer.name: peer
    for peer in (
        Peer("slipway", "Slipway", _slipway, protocol=True),
        Peer("mlserver", "MLServer", _mlserver, ("mlserver==1.7.1",), protocol=True, grpc=True),
        Peer("litserve", "LitServe", _app("litserve", "litserve_app"), (LITSERVE,)),
        Peer("bentoml", "BentoML", _bentoml, ("bentoml==1.4.40",)),
        Peer("ray", "Ray Serve", _app("ray", "ray_app"), ("ray[serve]==2.60.0",)),
        # Triton's process has a Python inside that does not know the standard library of a later 3.11.
        Peer("pytriton", "PyTriton", _pytriton, ("nvidia-pytriton==0.7.0", "numpy<2"), ">=3.11,<3.11.7", protocol=True,
             grpc=True),
        Peer("fastapi", "FastAPI by hand, no batches, the model in its process", _app("fastapi", "fastapi_app"),
             ("fastapi==0.136.3", "uvicorn==0.54.0"), batches=False, size_gb=0.5, has_bar=False),
    )
}  # fmt: skip


def prepare(peer: Peer, console: Console) -> None:
    """Raises Unavailable with the reason."""
    if not peer.pins:
        return
    try:
        ensure(_environment(peer), console)
    except DevclusterError as error:
        raise Unavailable(str(error)) from error


@contextlib.contextmanager
def started(
    peer: Peer, model: ModelFile, file: Path, batch: int, core: int, folder: Path, grpc_port: int = 0
) -> Iterator[tuple[Program, Target]]:
    """One peer with one model. `grpc_port`: any, where it is 0. Raises Unavailable when it does not get ready."""
    own, port = folder / f"{peer.name}-{model.name}-{batch}", free_port()
    own.mkdir(exist_ok=True)
    url = f"http://127.0.0.1:{port}"
    target = Target(url + peer.path, peer.body(model))
    variables = {"BENCH_MODEL": str(file), "BENCH_BATCH": str(batch), "BENCH_INPUT": model.input_name}
    variables |= {"PYTHONPATH": str(ROOT)} if peer.pins else {}
    command = peer.command(Start(own, port, grpc_port or free_port(), file, batch))
    ready = partial(is_ready, target)
    with processes.started(peer.name, command, url, core, own / "log", ready, environment=variables) as program:
        yield program, target


@contextlib.contextmanager
def gateway(server: Program, core: int, folder: Path, body: bytes) -> Iterator[tuple[Program, Target, int]]:
    """Our gateway before a server: both as one program, its HTTP endpoint, and its port of gRPC."""
    own, port, grpc_port = folder / "gateway", free_port(), free_port()
    own.mkdir(exist_ok=True)
    routes, url = own / "routes.json", f"http://127.0.0.1:{port}"
    routes.write_text(json.dumps({"models": {NAME: {"backends": [{"endpoints": [server.url]}]}}}))
    ports = [f"--port={port}", f"--grpc-port={grpc_port}", "--admin-host=127.0.0.1", "--admin-port=0"]
    flags = [f"--routes={routes}", "--host=127.0.0.1", *ports, "--drain-delay=0"]
    target = Target(url + INFER, body)
    command, ready = [sys.executable, "-m", "slipway_gateway", *flags], partial(is_ready, target)
    with processes.started("gateway", command, url, core, own / "log", ready) as program:
        yield Program("slipway", url, (*server.pids, *program.pids)), target, grpc_port


def is_ready(target: Target) -> bool:
    """Whether its request is answered."""
    headers: Mapping[str, str] = {"Content-Type": "application/json", **target.headers}
    sent = urllib.request.Request(target.url, target.body, dict(headers))
    with contextlib.suppress(OSError), urllib.request.urlopen(sent, timeout=30) as reply:
        return bool(reply.status == 200)
    return False
