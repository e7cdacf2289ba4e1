"""What an engine profile states: command, probes, end of life and needs of an engine's container."""

from dataclasses import dataclass, field
from typing import Any

from slipway_operator.model.cluster.observed import Snapshot

HTTP_PORT = 8000  # of every engine: NetworkPolicies, gateways and the reader of metrics rely on it
MODEL_DIR = "/mnt/models"
# Variables that LeaderWorkerSet sets in each pod of a group; Kubernetes puts them into arguments that have $(NAME).
LEADER_ADDRESS, WORKER_INDEX = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
FETCHED = f"{MODEL_DIR}/current"  # link that the fetcher leaves to the folder of the model, for other engines
USER_ID = 65532

PRE_STOP_S = 5  # gateways see that a pod terminates before it gets SIGTERM
GRACE_MARGIN_S = 10  # from the end of the drain to the kill
STARTUP_LIMIT_S = 3600  # the rollout's progress deadline rejects long before; this only bounds a forgotten pod


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe of a container; without a path it opens the port."""

    path: str | None
    period_s: int
    failures: int
    timeout_s: int = 3
    port: str = "http"

    def render(self) -> dict[str, Any]:
        """Return the probe of a Container."""
        check = {"httpGet": {"path": self.path, "port": self.port}} if self.path else {"tcpSocket": {"port": self.port}}
        times = {
            "periodSeconds": self.period_s,
            "failureThreshold": self.failures,
            "timeoutSeconds": self.timeout_s,
        }
        return {**check, **times}


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """How one engine runs in a pod of a revision."""

    command: tuple[str, ...]  # empty: the image's entrypoint
    args: tuple[str, ...]  # without those of the user, which follow
    worker_command: tuple[str, ...] = field(default=(), kw_only=True)  # of a replica's pods that are not its leader
    worker_args: tuple[str, ...] = field(default=(), kw_only=True)  # with those of the user
    worker_has_python: bool = field(default=False, kw_only=True)  # so that it can wait for the end of its leader
    startup: Probe
    readiness: Probe
    liveness: Probe
    grace_s: int  # from the deletion of a pod to SIGKILL
    pre_stop_s: int = PRE_STOP_S
    env: tuple[tuple[str, str], ...] = ()  # the user may replace these
    owned_env: tuple[tuple[str, str], ...] = ()  # the user may not
    ports: tuple[tuple[str, int], ...] = (("http", HTTP_PORT),)
    shared_memory: str | None = None  # default size of /dev/shm
    user_id: int = USER_ID
    read_only_root: bool = True


def model_path(snapshot: Snapshot) -> str:
    """Return the folder of the model, for another engine than slipway: with file:// it is in the engine's image."""
    scheme, _, path = snapshot.inputs.model.uri.partition("://")
    return path if scheme == "file" else FETCHED


def parsers(snapshot: Snapshot) -> tuple[str, ...]:
    """Arguments for the parsers of answers; slipway-server, vLLM and SGLang call them the same."""
    engine = snapshot.inputs.engine
    named = (("--tool-call-parser", engine.tool_parser), ("--reasoning-parser", engine.reasoning_parser))
    return tuple(part for flag, name in named if name for part in (flag, name))


def devices(snapshot: Snapshot) -> int:
    """Return the number of accelerators of a pod; 0 for a CPU."""
    accelerator = snapshot.inputs.resources.accelerator
    return accelerator[1] if accelerator else 0


def sizes(snapshot: Snapshot, tensor: int, pipeline: int) -> tuple[int, int]:
    """Return tensor and pipeline parallel size: those given, else what follows from the one that is, else these."""
    wanted, total = snapshot.inputs.engine.parallelism, snapshot.inputs.devices
    if wanted.tensor and wanted.pipeline:
        return wanted.tensor, wanted.pipeline
    if wanted.tensor:
        return wanted.tensor, total // wanted.tensor
    if wanted.pipeline:
        return total // wanted.pipeline, wanted.pipeline
    return tensor, pipeline


def startup(path: str, period_s: int, timeout_s: int = 3, port: str = "http") -> Probe:
    """Return a startup probe that ends at STARTUP_LIMIT_S."""
    return Probe(path, period_s, STARTUP_LIMIT_S // period_s, timeout_s, port)


def shared_memory(snapshot: Snapshot) -> str:
    """Return the default size of /dev/shm for an engine whose processes share tensors there."""
    return "8Gi" if devices(snapshot) > 1 else "1Gi"


# Engines write caches of compiled kernels to their home, and look up the name of their user, who has no entry in
# /etc/passwd of most images.
WRITABLE_HOME = (
    ("HOME", "/tmp"),
    ("USER", "slipway"),
    ("LOGNAME", "slipway"),
    ("XDG_CACHE_HOME", "/tmp/cache"),
    ("HF_HOME", "/tmp/cache/huggingface"),
    ("TORCHINDUCTOR_CACHE_DIR", "/tmp/cache/torchinductor"),
    ("TRITON_CACHE_DIR", "/tmp/cache/triton"),
    ("NUMBA_CACHE_DIR", "/tmp/cache/numba"),
    ("FLASHINFER_WORKSPACE_BASE", "/tmp/cache"),
)
