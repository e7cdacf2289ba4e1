"""SGLang: `/health` generates a token and takes up to 20 s, and SIGTERM waits for running requests without a limit."""

from slipway_operator.manifests.engines.profile import (
    DRAFT_FETCHED,
    HTTP_PORT,
    LEADER_ADDRESS,
    PRE_STOP_S,
    WORKER_INDEX,
    WRITABLE_HOME,
    EngineProfile,
    Probe,
    devices,
    model_path,
    parsers,
    shared_memory,
    sizes,
    startup,
)
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.pod_inputs import DRAFT

COMMAND = ("python3", "-m", "sglang.launch_server")
GROUP_PORT = 20000  # of the leader: the pods of a group meet there
HEALTH_S = 25  # SGLang's own limit is 20 s
END_S = 25  # SGLang checks every 5 s whether the last request has ended, and then ends its processes


def profile(snapshot: Snapshot) -> EngineProfile:
    """Return the profile for a revision."""
    return EngineProfile(
        command=COMMAND,
        args=_args(snapshot),
        worker_command=COMMAND,
        worker_has_python=True,
        worker_args=(*_args(snapshot), *snapshot.inputs.engine.args),
        startup=startup("/health", 10, timeout_s=HEALTH_S),
        readiness=Probe("/health", 10, 2, timeout_s=HEALTH_S),
        liveness=Probe("/ping", 10, 6, timeout_s=5),
        grace_s=PRE_STOP_S + snapshot.drain_timeout_s + END_S,
        env=WRITABLE_HOME,
        shared_memory=shared_memory(snapshot),
        read_only_root=not devices(snapshot),
    )


def _args(snapshot: Snapshot) -> tuple[str, ...]:
    model, nodes = snapshot.inputs.model, snapshot.inputs.engine.parallelism.nodes
    # SGLang's tensor parallel size covers all pods of a group; vLLM's default is the devices of one pod.
    tensor, pipeline = sizes(snapshot, nodes * max(1, devices(snapshot)), 1)
    return (
        *("--model-path", model_path(snapshot)),
        *("--served-model-name", model.name),
        *("--host", "0.0.0.0", "--port", str(HTTP_PORT)),
        *(("--is-embedding",) if model.task == "embed" else ()),
        *(("--dtype", model.dtype) if model.dtype != "auto" else ()),
        *(("--context-length", str(model.max_model_len_tokens)) if model.max_model_len_tokens else ()),
        *(("--tp-size", str(tensor)) if tensor > 1 else ()),
        *(("--pp-size", str(pipeline)) if pipeline > 1 else ()),
        *(_group(nodes) if nodes > 1 else ()),
        "--enable-metrics",
        *parsers(snapshot),
        *_speculation(snapshot),
        *_adapters(snapshot),
    )


def _speculation(snapshot: Snapshot) -> tuple[str, ...]:
    """SGLang counts the row of the next token too, and has no ngram on other devices than NVIDIA's."""
    speculation = snapshot.inputs.speculation
    if speculation is None:
        return ()
    rows = str(speculation.tokens + 1)
    if speculation.method == DRAFT:  # one chain of drafts, without branches
        return (
            *("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", DRAFT_FETCHED),
            *("--speculative-num-steps", str(speculation.tokens), "--speculative-eagle-topk", "1"),
            *("--speculative-num-draft-tokens", rows),
        )
    return "--speculative-algorithm", speculation.method.upper(), "--speculative-num-draft-tokens", rows


def _adapters(snapshot: Snapshot) -> tuple[str, ...]:
    """Without adapters at its start it has to know rank and modules: docs.sglang.io/advanced_features/lora."""
    room = snapshot.inputs.adapters
    if room is None:
        return ()
    limits = ("--max-lora-rank", str(room.max_rank), "--max-loras-per-batch", str(room.max_loaded))
    return "--enable-lora", *limits, "--lora-target-modules", "all"


def _group(nodes: int) -> tuple[str, ...]:
    return "--nnodes", str(nodes), "--node-rank", WORKER_INDEX, "--dist-init-addr", f"{LEADER_ADDRESS}:{GROUP_PORT}"
