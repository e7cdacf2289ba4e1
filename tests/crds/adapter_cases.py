"""The cases of spec.adapters: room for LoRA adapters in the pods of a language model."""

from typing import Any

from tests.crds.objects import Case, Change


def _with(engine: Any = None, model: Any = None, **fields: Any) -> Change:
    return {"adapters": fields, **({"engine": engine} if engine else {}), **({"model": model} if model else {})}


_VLLM = {"type": "vllm", "image": "vllm/vllm-openai:v0.32.0"}
_POOLED = {"uri": "file:///m", "task": "predict"}

CEL_CASES = (
    Case(
        "adapters-of-language-models",
        "spec.adapters is for language models with pods of their own",
        bad=(
            _with(model={"task": "embed"}),
            _with(model={"task": "predict"}),
            _with(model=_POOLED) | {"pool": {"name": "shared"}},
        ),
        good=(
            _with(),
            _with(model={"task": "auto"}),
            _with(model={"task": "generate"}),
            {"adapters": {"maxLoaded": 4}},
        ),
    ),
    Case(
        "adapters-of-one-pod",
        "spec.adapters is for replicas of one pod",
        bad=(_with(engine=_VLLM | {"parallelism": {"nodes": 2}}),),
        good=(_with(engine=_VLLM | {"parallelism": {"nodes": 1}}), _with(engine=_VLLM)),
    ),
    Case(
        "adapters-engines",
        "spec.adapters is for the engine types slipway, vllm and sglang, whose flags for adapters the operator sets",
        bad=(
            _with(engine={"type": "custom", "image": "a", "command": ["a"]}),
            *(
                _with(engine={"args": [flag]})
                for flag in ("--max-loras", "--max-lora-rank=4", "--lora-root", "--enable-lora", "--max_loras=1")
            ),
            _with(engine=_VLLM | {"args": ["--max-cpu-loras=4"]}),
            _with(engine=_VLLM | {"args": ["--lora-modules", "a=b"]}),
        ),
        good=(
            _with(engine={"args": ["--max-num-seqs", "4"]}),
            _with(engine=_VLLM | {"args": ["--max-num-seqs=4"]}),
            {"engine": {"args": ["--max-loras", "4"]}},
        ),
    ),
    Case(
        "adapters-of-vllm",
        "spec.adapters.memory is for the engine type slipway, and vllm takes spec.adapters.maxRank of 1, 8, 16",
        bad=(_with(engine=_VLLM, maxRank=12), _with(engine=_VLLM, memory="1Gi")),
        good=(_with(engine=_VLLM, maxRank=320), _with(maxRank=12, memory="1Gi"), _with(engine=_VLLM)),
    ),
    Case(
        "adapters-memory",
        "spec.adapters.memory must be a positive quantity",
        bad=(_with(memory="much"), _with(memory=0), _with(memory="65Ti")),
        good=(_with(memory="512Mi"), _with(memory=1)),
    ),
)

SCHEMA_CASES = (
    Case(
        "adapters-bounds",
        "spec.adapters.max",
        bad=(_with(maxLoaded=0), _with(maxLoaded=257), _with(maxRank=0), _with(maxRank=513)),
        good=(_with(maxLoaded=256, maxRank=512), _with(maxLoaded=1, maxRank=1)),
    ),
    Case(
        "adapters-secret",
        "spec.adapters.secretRef.name",
        bad=(_with(secretRef={"name": "A"}), _with(secretRef={"name": ""}), _with(secretRef={"name": "a" * 254})),
        good=(_with(secretRef={"name": "hub"}),),
    ),
)
