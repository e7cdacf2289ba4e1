"""What an engine profile states: command, probes, end of life and needs of an engine's container."""

from dataclasses import dataclass, field
from typing import Any

from slipway_operator.model.cluster.observed import Snapshot

HTTP_PORT = 8000  # of every engine: NetworkPolicies, gateways and the metrics sampler rely on it
MODEL_DIR = "/mnt/models"
# Variables that LeaderWorkerSet sets in each pod of a group; Kubernetes puts them into arguments that have $(NAME).
LEADER_ADDRESS, WORKER_INDEX = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
DRAFT_DIR = f"{MODEL_DIR}/draft"  # of the draft model, in the same volume
DRAFT_FETCHED = f"{DRAFT_DIR}/current"
FETCHED = f"{MODEL_DIR}/current"  # symbolic link to the folder of the model, which the fetcher makes for other engines
USER_ID = 65532

PRE_STOP_S = 5  # between deletion and SIGTERM, so that gateways stop sending requests first
GRACE_MARGIN_S = 10  # from the end of the drain to SIGKILL
STARTUP_LIMIT_S = 3600  # the rollout's progress deadline rejects long before; this only bounds a forgotten pod


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe of a container: HTTP GET of `path`, or without a path a TCP connection."""

    path: str | None
    period_s: int
    failures: int
    timeout_s: int = 3
    port: str = "http"

    def render(self) -> dict[str, Any]:
        """Return the probe as a field of a container."""
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
    args: tuple[str, ...]  # without the user's arguments, which follow
    worker_command: tuple[str, ...] = field(default=(), kw_only=True)  # of a group's workers
    worker_args: tuple[str, ...] = field(default=(), kw_only=True)  # with the user's arguments
    worker_has_python: bool = field(default=False, kw_only=True)  # needed to wait in preStop for the end of the leader
    startup: Probe
    readiness: Probe
    liveness: Probe
    grace_s: int  # from the deletion of a pod to SIGKILL
    pre_stop_s: int = PRE_STOP_S
    env: tuple[tuple[str, str], ...] = ()  # variables that the user may replace
    owned_env: tuple[tuple[str, str], ...] = ()  # variables that the user may not replace
    ports: tuple[tuple[str, int], ...] = (("http", HTTP_PORT),)
    shared_memory: str | None = None  # default size of /dev/shm
    user_id: int = USER_ID
    read_only_root: bool = True


def model_path(snapshot: Snapshot) -> str:
    """Return the folder of the model, for another engine than slipway: with file:// it is in the engine's image."""
    scheme, _, path = snapshot.inputs.model.uri.partition("://")
    return path if scheme == "file" else FETCHED


def parsers(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the tool call and reasoning parser flags, which slipway-server, vLLM and SGLang name alike."""
    engine = snapshot.inputs.engine
    named = (("--tool-call-parser", engine.tool_parser), ("--reasoning-parser", engine.reasoning_parser))
    return tuple(part for flag, name in named if name for part in (flag, name))


def devices(snapshot: Snapshot) -> int:
    """Return the number of accelerators of a pod; 0 when it runs on CPU."""
    accelerator = snapshot.inputs.resources.accelerator
    return accelerator[1] if accelerator else 0


def sizes(snapshot: Snapshot, tensor: int, pipeline: int) -> tuple[int, int]:
    """Return tensor and pipeline parallel size as the spec sets them.

    If it sets one, the other follows from the number of devices. If it sets none, the arguments are the defaults.
    """
    wanted, total = snapshot.inputs.engine.parallelism, snapshot.inputs.devices
    if wanted.tensor and wanted.pipeline:
        return wanted.tensor, wanted.pipeline
    if wanted.tensor:
        return wanted.tensor, total // wanted.tensor
    if wanted.pipeline:
        return total // wanted.pipeline, wanted.pipeline
    return tensor, pipeline


def startup(path: str, period_s: int, timeout_s: int = 3, port: str = "http") -> Probe:
    """Return a startup probe that fails for good after STARTUP_LIMIT_S."""
    return Probe(path, period_s, STARTUP_LIMIT_S // period_s, timeout_s, port)


def shared_memory(snapshot: Snapshot) -> str:
    """Return the default size of /dev/shm for an engine whose processes share tensors there."""
    return "8Gi" if devices(snapshot) > 1 else "1Gi"


# Engines write caches of compiled kernels to HOME. They look up the user name of the process, and in most images
# /etc/passwd does not have our user id.
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
