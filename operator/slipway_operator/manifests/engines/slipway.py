"""slipway-server: docs/contracts.md has its flags and its probes."""

from slipway_operator.manifests.engines.profile import (
    DRAFT_DIR,
    GRACE_MARGIN_S,
    HTTP_PORT,
    MODEL_DIR,
    PRE_STOP_S,
    EngineProfile,
    Probe,
    parsers,
    startup,
)
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.pod_inputs import CLASSIC, DRAFT

PROBE_PORT = 8001
ADAPTERS_DIR = "/mnt/adapters"  # for every engine
LOOKUP_MIN, LOOKUP_MAX = 2, 8  # the server's own


def profile(snapshot: Snapshot) -> EngineProfile:
    """Return the profile for a revision."""
    return EngineProfile(
        command=("slipway-server",),
        args=_args(snapshot),
        startup=startup("/readyz", 1, port="probe"),
        readiness=Probe("/readyz", 2, 2, port="probe"),
        liveness=Probe("/healthz", 10, 3, port="probe"),
        grace_s=PRE_STOP_S + snapshot.drain_timeout_s + GRACE_MARGIN_S,
        env=(("HOME", "/tmp"),),
        ports=(("http", HTTP_PORT), ("probe", PROBE_PORT)),
    )


def _args(snapshot: Snapshot) -> tuple[str, ...]:
    """Arguments of slipway-server; tests/contract checks that the server accepts them."""
    model = snapshot.inputs.model
    length = ("--max-model-len", str(model.max_model_len_tokens)) if model.max_model_len_tokens else ()
    return (
        *("--model", MODEL_DIR),
        *("--served-model-name", model.name),
        *("--model-version", model.version or snapshot.revision),
        *("--task", model.task),
        *("--dtype", model.dtype),
        *(("--quantization", model.quantization) if model.quantization != "none" else ()),
        *length,
        *_device(snapshot),
        *("--port", str(HTTP_PORT)),
        *("--probe-port", str(PROBE_PORT)),
        *("--drain-timeout", str(snapshot.drain_timeout_s)),
        *parsers(snapshot),
        *_speculation(snapshot),
        *_adapters(snapshot),
        *(_predict(snapshot) if model.task in CLASSIC else ()),
    )


def _speculation(snapshot: Snapshot) -> tuple[str, ...]:
    speculation = snapshot.inputs.speculation
    if speculation is None:
        return ()
    least, most = speculation.lookup_min, speculation.lookup_max
    # The server refuses a minimum above the maximum, its own defaults too: one that is written alone moves the other.
    if most is None and least is not None and least > LOOKUP_MAX:
        most = least
    elif least is None and most is not None and most < LOOKUP_MIN:
        least = most
    lookups = (("--prompt-lookup-min", least), ("--prompt-lookup-max", most))
    given = [part for flag, value in lookups if value is not None for part in (flag, str(value))]
    if speculation.method == DRAFT:
        given = ["--speculative-draft-model", DRAFT_DIR]
    return "--speculation", speculation.method, "--num-speculative-tokens", str(speculation.tokens), *given


def _adapters(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the arguments that only models with room for adapters have, so that other pods stay as they are."""
    room = snapshot.inputs.adapters
    if room is None:
        return ()
    memory = ("--max-lora-bytes", str(room.memory_bytes)) if room.memory_bytes else ()
    limits = ("--max-loras", str(room.max_loaded), "--max-lora-rank", str(room.max_rank))
    return (*limits, *memory, "--lora-root", ADAPTERS_DIR)


def _predict(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the arguments that only classic models have, so that pods of other models stay as they are."""
    batching = snapshot.inputs.batching
    sizes = (
        ("--max-batch-size", batching.max_batch_size),
        ("--max-queue-delay-microseconds", batching.max_queue_delay_microseconds),
        ("--max-queue-size", batching.max_queue_size),
        ("--request-timeout-ms", batching.timeout_milliseconds),
    )
    given = [part for flag, value in sizes if value is not None for part in (flag, str(value))]
    return ("--model-revision", snapshot.revision, "--format", snapshot.inputs.model.format, *given)


def _device(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the device argument: without it, a server with an accelerator could use the CPU instead of failing.

    Since template version 2: earlier revisions are rendered as before.
    """
    with_accelerator = snapshot.inputs.resources.accelerator is not None
    return ("--device", "cuda") if with_accelerator and snapshot.template_version >= 2 else ()
