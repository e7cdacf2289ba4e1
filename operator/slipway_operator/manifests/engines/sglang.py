"""SGLang: `/health` generates a token and takes up to 20 s, and SIGTERM waits for running requests without a limit."""

from slipway_operator.manifests.engines.profile import (
    HTTP_PORT,
    PRE_STOP_S,
    WRITABLE_HOME,
    EngineProfile,
    Probe,
    devices,
    model_path,
    shared_memory,
    startup,
)
from slipway_operator.model.cluster.observed import Snapshot

HEALTH_S = 25  # its own limit is 20 s
END_S = 25  # it looks for the end of the last request every 5 s, and then ends its processes


def profile(snapshot: Snapshot) -> EngineProfile:
    """Return the profile for a revision."""
    return EngineProfile(
        command=("python3", "-m", "sglang.launch_server"),
        args=_args(snapshot),
        startup=startup("/health", 10, timeout_s=HEALTH_S),
        readiness=Probe("/health", 10, 2, timeout_s=HEALTH_S),
        liveness=Probe("/ping", 10, 6, timeout_s=5),
        grace_s=PRE_STOP_S + snapshot.drain_timeout_s + END_S,
        env=WRITABLE_HOME,
        shared_memory=shared_memory(snapshot),
        read_only_root=not devices(snapshot),
    )


def _args(snapshot: Snapshot) -> tuple[str, ...]:
    model, count = snapshot.inputs.model, devices(snapshot)
    return (
        *("--model-path", model_path(snapshot)),
        *("--served-model-name", model.name),
        *("--host", "0.0.0.0", "--port", str(HTTP_PORT)),
        *(("--is-embedding",) if model.task == "embed" else ()),
        *(("--dtype", model.dtype) if model.dtype != "auto" else ()),
        *(("--context-length", str(model.max_model_len_tokens)) if model.max_model_len_tokens else ()),
        *(("--tp-size", str(count)) if count > 1 else ()),
        "--enable-metrics",
    )
