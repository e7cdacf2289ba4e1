"""vLLM 0.18 and later: its HTTP port opens when the engine is ready, and `/health` fails when the engine has died."""

import json

from slipway_operator.manifests.engines.profile import (
    DRAFT_FETCHED,
    GRACE_MARGIN_S,
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


def profile(snapshot: Snapshot) -> EngineProfile:
    """Return the profile for a revision."""
    return EngineProfile(
        command=("vllm", "serve"),
        args=_args(snapshot),
        worker_command=("vllm", "serve"),
        worker_has_python=True,
        worker_args=(*_args(snapshot), "--headless", *snapshot.inputs.engine.args),
        startup=startup("/health", 5, timeout_s=5),
        readiness=Probe("/health", 5, 2, timeout_s=5),
        # A busy engine may take seconds: a pod is restarted only after a minute without a response.
        liveness=Probe("/health", 10, 6, timeout_s=5),
        grace_s=PRE_STOP_S + snapshot.drain_timeout_s + GRACE_MARGIN_S,
        env=(
            *WRITABLE_HOME,
            ("VLLM_CACHE_ROOT", "/tmp/cache/vllm"),
            ("VLLM_NO_USAGE_STATS", "1"),
        ),
        # Its endpoints for loading exist only with it.
        owned_env=(("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1"),) if snapshot.inputs.adapters else (),
        shared_memory=shared_memory(snapshot),
        # NVIDIA's container toolkit writes to the root file system of a container with a GPU.
        read_only_root=not devices(snapshot),
    )


def _args(snapshot: Snapshot) -> tuple[str, ...]:
    model, nodes = snapshot.inputs.model, snapshot.inputs.engine.parallelism.nodes
    tensor, pipeline = sizes(snapshot, max(1, devices(snapshot)), nodes)
    return (
        model_path(snapshot),
        *("--served-model-name", model.name),
        *("--host", "0.0.0.0", "--port", str(HTTP_PORT)),
        *(("--runner", "pooling") if model.task == "embed" else ()),
        *(("--dtype", model.dtype) if model.dtype != "auto" else ()),
        *(("--max-model-len", str(model.max_model_len_tokens)) if model.max_model_len_tokens else ()),
        *(("--tensor-parallel-size", str(tensor)) if tensor > 1 else ()),
        *(("--pipeline-parallel-size", str(pipeline)) if pipeline > 1 else ()),
        *(_group(nodes) if nodes > 1 else ()),
        *("--shutdown-timeout", str(snapshot.drain_timeout_s)),
        # Without this flag vLLM parses tool calls only if the request names the tool.
        *(("--enable-auto-tool-choice",) if snapshot.inputs.engine.tool_parser else ()),
        *parsers(snapshot),
        *_speculation(snapshot),
        *_adapters(snapshot),
    )


def _speculation(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the configuration as JSON, with vLLM's own defaults for what the spec leaves out."""
    speculation = snapshot.inputs.speculation
    if speculation is None:
        return ()
    drafts = speculation.method == DRAFT
    config = {
        "method": "draft_model" if drafts else speculation.method,
        "model": DRAFT_FETCHED if drafts else None,
        "num_speculative_tokens": speculation.tokens,
        "prompt_lookup_max": speculation.lookup_max,
        "prompt_lookup_min": speculation.lookup_min,
    }
    return "--speculative-config", json.dumps({name: value for name, value in config.items() if value is not None})


def _adapters(snapshot: Snapshot) -> tuple[str, ...]:
    room = snapshot.inputs.adapters
    if room is None:
        return ()
    return "--enable-lora", "--max-loras", str(room.max_loaded), "--max-lora-rank", str(room.max_rank)


def _group(nodes: int) -> tuple[str, ...]:
    """Return the flags by which the pods of a group find each other, without Ray; the leader is rank 0."""
    return "--nnodes", str(nodes), "--node-rank", WORKER_INDEX, "--master-addr", LEADER_ADDRESS
