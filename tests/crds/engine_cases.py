"""The cases of spec.engine's types: for every rule what it refuses, and what it lets pass beside it."""

from typing import Any

from tests.crds.objects import Case, Change

VLLM_IMAGE = "vllm/vllm-openai:v0.32.0"
DIGEST = "registry.example:5000/vllm@sha256:" + "0" * 64


def _engine(**fields: Any) -> Change:
    return {"engine": fields}


def _vllm(*args: str, **fields: Any) -> Change:
    return _engine(**{"type": "vllm", "image": VLLM_IMAGE, **({"args": list(args)} if args else {}), **fields})


def _sglang(*args: str) -> Change:
    return _engine(type="sglang", image="lmsysorg/sglang:v0.6.0", args=list(args))


def _speculating(engine: str, **fields: Any) -> Change:
    image = VLLM_IMAGE if engine == "vllm" else "lmsysorg/sglang:v0.6.0"
    return _engine(type=engine, image=image, speculation={"method": "ngram", **fields})


def _drafting(draft: dict[str, Any], **more: Any) -> Change:
    return {"model": {"draft": draft}, **more}


DRAFT = {"uri": "hf://org/small"}


def _custom(**fields: Any) -> Change:
    return _engine(type="custom", image="ghcr.io/ggml-org/llama.cpp:server", **fields)


def _described(**fields: Any) -> Change:
    return _custom(custom=fields)


def _metrics(**fields: Any) -> Change:
    return _described(metrics=fields)


CEL_CASES = (
    Case(
        "draft model and method",
        "spec.engine.speculation.method: draft and spec.model.draft go together",
        bad=(_drafting(DRAFT, **_engine(speculation={"method": "ngram"})), _engine(speculation={"method": "draft"})),
        good=(
            _drafting(DRAFT),
            _drafting(DRAFT, **_engine(speculation={"method": "draft", "numSpeculativeTokens": 3})),
            _drafting(DRAFT, **_vllm()),
        ),
    ),
    Case(
        "draft model of a model without text",
        "spec.model.draft is for models that generate text, and not for the engine type custom",
        bad=(
            {"model": {"draft": DRAFT, "task": "embed"}},
            {"model": {"draft": DRAFT, "task": "predict"}},
            _drafting(DRAFT, **_custom()),
        ),
        good=({"model": {"draft": DRAFT, "task": "generate"}}, {"model": {"draft": DRAFT, "task": "auto"}}),
    ),
    Case(
        "draft model and flags",
        "spec.engine.args must not set flags of speculative decoding beside spec.model.draft",
        bad=tuple(
            _drafting(DRAFT, **_vllm(argument))
            for argument in ("--speculative-config={}", "--speculation", "--num-speculative-tokens=3", "-sc")
        ),
        good=(_drafting(DRAFT, **_vllm("--seed=1")),),
    ),
    Case(
        "draft model's source",
        "spec.model.draft.uri must start with hf://, https://, s3://, gs://, az:// or oci://",
        bad=tuple(
            _drafting({"uri": uri}) for uri in ("org/small", "pvc://claim/m", "file:///m", "models:/m/3", "hf://")
        ),
        good=tuple(
            _drafting({"uri": uri})
            for uri in ("https://host/m.tar", "s3://bucket/m", "gs://bucket/m", "az://box/m", "oci://h/r:1")
        ),
    ),
    Case(
        "draft model's repository",
        "an hf:// uri names one repository: write hf://org/model, and a branch or commit in spec.model.draft.revision",
        bad=tuple(_drafting({"uri": uri}) for uri in ("hf://small", "hf://org/small/more", "hf://org/small@main")),
        good=(_drafting({**DRAFT, "revision": "main"}),),
    ),
    Case(
        "draft model's path",
        "spec.model.draft.uri must not contain '..'",
        bad=(_drafting({"uri": "s3://bucket/a/../b"}), _drafting({"uri": "https://host/.."})),
        good=(_drafting({"uri": "s3://bucket/a..b"}),),
    ),
    Case(
        "draft model's credentials",
        "spec.model.draft.uri must not hold credentials",
        bad=(_drafting({"uri": "https://user:word@host/m.tar"}),),
        good=(_drafting({"uri": "https://host/a@b/m.tar"}),),
    ),
    Case(
        "draft model's tag",
        "spec.model.draft.revision does not go with oci://",
        bad=(_drafting({"uri": "oci://h/r:v1", "revision": "v1"}),),
        good=(_drafting({"uri": "oci://h/r:v1"}),),
    ),
    Case(
        "lookups of a draft model",
        "spec.engine.speculation.promptLookupMin and promptLookupMax are for method: ngram",
        bad=(
            _drafting(DRAFT, **_engine(speculation={"method": "draft", "promptLookupMin": 2})),
            _drafting(DRAFT, **_engine(speculation={"method": "draft", "promptLookupMax": 4})),
        ),
        good=(_engine(speculation={"method": "ngram", "promptLookupMin": 2}),),
    ),
    Case(
        "accelerator.count of one for slipway",
        "spec.resources.accelerator.count must be 1 for the engine type slipway",
        bad=(
            *({"resources": {"accelerator": {"count": count}}} for count in (2, 8, 16)),
            {"resources": {"accelerator": {"count": 2}}, "engine": {"args": ["--allow-slow"]}},
        ),
        good=(
            {"resources": {"accelerator": {"count": 1}}},
            {"resources": {"accelerator": {"count": 8}}, **_vllm()},
        ),
    ),
    Case(
        "accelerator.count of one machine",
        "spec.resources.accelerator.count must be at most 16",
        bad=({"resources": {"accelerator": {"count": 17}}, **_vllm()},),
        good=({"resources": {"accelerator": {"count": 16}}, **_vllm()},),
    ),
    Case(
        "sharedMemory",
        "spec.resources.sharedMemory must be a positive quantity",
        bad=tuple({"resources": {"sharedMemory": size}} for size in ("0", "-1Gi", "much")),
        good=tuple({"resources": {"sharedMemory": size}} for size in ("8Gi", 1073741824)),
    ),
    Case(
        "engine.image of another engine",
        "spec.engine.image is required for the engine types vllm, sglang and custom",
        bad=tuple(_engine(type=name) for name in ("vllm", "sglang", "custom")),
        good=(_engine(type="slipway"), _vllm(), _custom()),
    ),
    Case(
        "engine.custom of another engine",
        "spec.engine.command and spec.engine.custom are for the engine type custom",
        bad=(_engine(command=["x"]), _vllm(command=["vllm"]), _vllm(custom={}), _engine(custom={})),
        good=(_custom(command=["llama-server"], custom={"readinessPath": "/v1/health/ready"}),),
    ),
    Case(
        "engine.version of another engine",
        "spec.engine.version is for the engine type vllm",
        bad=(_engine(version="1.0"), _custom(version="1.0")),
        good=(_vllm(version="0.32.0"),),
    ),
    Case(
        "engine.version of vllm",
        "vLLM must be 0.18 or later",
        bad=(
            *(_vllm(image=f"vllm/vllm-openai:{tag}") for tag in ("latest", "v0.17.1", "0.9", "v0.1.18")),
            _vllm(image=DIGEST),
            _vllm(image=DIGEST, version="0.17.9"),
        ),
        good=(
            *(_vllm(image=f"vllm/vllm-openai:{tag}") for tag in ("v0.18.0", "0.32.0-cu130", "v1.0.2", "v0.120.1")),
            _vllm(image=DIGEST, version="0.32.0"),
            _vllm(image="vllm/vllm-openai:nightly", version="v0.33.0"),
        ),
    ),
    Case(
        "args-reserved-vllm",
        "spec.engine.args of a vllm engine must not set --model",
        bad=tuple(
            _vllm(arg)
            for arg in (
                *("--model", "--model=/x", "--served-model-name", "--served_model_name=x", "--served-model"),
                *("--port", "--port=1", "--por", "--host", "--tensor-parallel-size=2", "--tensor-par", "-tp", "-tp=2"),
                *("--shutdown-timeout", "--config=f", "--conf", "--api-key", "--dtype", "--max_model_len", "--uds"),
                *("--nnodes=2", "--headless", "--ssl-keyfile=k", "--runner", "--pipeline-parallel-size=2"),
            )
        ),
        good=(
            _vllm("--gpu-memory-utilization", "0.9", "--enable-prefix-caching", "--max-num-seqs=8", "-O3"),
            _vllm("--config-format=hf", "--quantization", "fp8", "--trust-remote-code", "--hf-overrides.a=b"),
        ),
    ),
    Case(
        "args-reserved-sglang",
        "spec.engine.args of a sglang engine must not set --model-path",
        bad=tuple(
            _sglang(arg)
            for arg in (
                *("--model-path=/x", "--model", "--host", "--port=1", "--tp", "--tp-size=2", "--tensor-parallel-size"),
                *(
                    "--context-length=1",
                    "--api-key=k",
                    "--admin-api-key=k",
                    "--nnodes",
                    "--dist-init-addr=a",
                    "--pp-size=2",
                ),
            )
        ),
        good=(_sglang("--mem-fraction-static", "0.8", "--dp-size=1", "--quantization=fp8"),),
    ),
    Case(
        "parallelism of slipway",
        "spec.engine.parallelism is for the engine types vllm, sglang and custom",
        bad=(_engine(parallelism={"nodes": 2}), _engine(parallelism={})),
        good=(_vllm(parallelism={"nodes": 2}), _custom(parallelism={"nodes": 1})),
    ),
    Case(
        "parallelism of a custom engine",
        "spec.engine.parallelism of a custom engine has nodes alone",
        bad=(_custom(parallelism={"nodes": 2, "tensor": 2}), _custom(parallelism={"pipeline": 2})),
        good=(_custom(parallelism={"nodes": 4}), _vllm(parallelism={"nodes": 2, "pipeline": 2})),
    ),
    Case(
        "workerCommand of one pod",
        "spec.engine.custom.workerCommand needs spec.engine.parallelism.nodes above 1",
        bad=(
            _described(workerCommand=["join"]),
            _custom(custom={"workerCommand": ["join"]}, parallelism={"nodes": 1}),
        ),
        good=(_custom(custom={"workerCommand": ["join"]}, parallelism={"nodes": 2}),),
    ),
    Case(
        "env of vllm",
        "spec.engine.env of a vllm engine must not set VLLM_API_KEY",
        bad=(_vllm(env=[{"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]),),
        good=(_vllm(env=[{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}]),),
    ),
    Case(
        "quantization of another engine",
        "spec.model.quantization is for the engine type slipway",
        bad=({"model": {"quantization": "int8"}, **_vllm()}, {"model": {"quantization": "int8"}, **_custom()}),
        good=({"model": {"quantization": "none"}, **_vllm()},),
    ),
    Case(
        "parsers of a custom engine",
        "spec.engine.toolParser and reasoningParser are not for the engine type custom: write its own arguments in "
        "spec.engine.args",
        bad=(_custom(toolParser="hermes"), _custom(reasoningParser="qwen3")),
        good=(_vllm(toolParser="hermes", reasoningParser="qwen3"), _engine(toolParser="json")),
    ),
    Case(
        "tool parser twice",
        "spec.engine.args must not set --tool-call-parser beside spec.engine.toolParser: remove one of them",
        bad=(
            _vllm("--tool-call-parser", "hermes", toolParser="hermes"),
            _vllm("--tool-call-parser=x", toolParser="y"),
        ),
        good=(_vllm("--tool-call-parser", "hermes"), _vllm("--reasoning-parser=x", toolParser="hermes")),
    ),
    Case(
        "reasoning parser twice",
        "spec.engine.args must not set --reasoning-parser beside spec.engine.reasoningParser: remove one of them",
        bad=(_vllm("--reasoning-parser=x", reasoningParser="qwen3"),),
        good=(_vllm("--reasoning-parser", "qwen3"),),
    ),
    Case(
        "speculation of a custom engine",
        "spec.engine.speculation is not for the engine type custom",
        bad=(_custom(speculation={"method": "ngram"}),),
        good=(_vllm(speculation={"method": "ngram"}), _engine(speculation={"method": "ngram"})),
    ),
    Case(
        "lookups of sglang",
        "spec.engine.speculation.promptLookupMin and promptLookupMax are not for the engine type sglang",
        bad=(
            _speculating("sglang", promptLookupMin=2),
            _speculating("sglang", promptLookupMax=4),
        ),
        good=(_speculating("sglang", numSpeculativeTokens=4), _speculating("vllm", promptLookupMax=4)),
    ),
    Case(
        "speculation twice",
        "spec.engine.args must not set flags of speculative decoding beside spec.engine.speculation",
        bad=tuple(
            _vllm(argument, speculation={"method": "ngram"})
            for argument in ("--speculative-config={}", "--speculation", "--num-speculative-tokens=3", "-sc")
        ),
        good=(_vllm("--speculative-config={}"), _vllm("--seed=1", speculation={"method": "ngram"})),
    ),
    Case(
        "order of lookups",
        "spec.engine.speculation.promptLookupMin must not be above promptLookupMax",
        bad=(_speculating("vllm", promptLookupMin=5, promptLookupMax=4),),
        good=(_speculating("vllm", promptLookupMin=4, promptLookupMax=4), _speculating("vllm", promptLookupMin=9)),
    ),
    Case(
        "speculation of a model without text",
        "spec.engine.speculation is for models that generate text",
        bad=tuple({"model": {"task": task}, **_vllm(speculation={"method": "ngram"})} for task in ("embed",)),
        good=(
            {"model": {"task": "generate"}, **_vllm(speculation={"method": "ngram"})},
            {"model": {"task": "auto"}, **_vllm(speculation={"method": "ngram"})},
        ),
    ),
    Case(
        "model of a custom engine",
        "spec.model.task, dtype and maxModelLen are not for the engine type custom",
        bad=tuple(
            {"model": model, **_custom()} for model in ({"task": "embed"}, {"dtype": "float32"}, {"maxModelLen": 4096})
        ),
        good=(
            {"model": {"task": "auto", "dtype": "auto"}, **_custom()},
            {"model": {"task": "embed", "dtype": "bfloat16", "maxModelLen": 4096}, **_vllm()},
        ),
    ),
)

SCHEMA_CASES = (
    Case(
        "model.draft.uri",
        "spec.model.draft.uri",
        bad=(_drafting({"uri": ""}), _drafting({"uri": "https://host/" + "a" * 2048}), _drafting({})),
        good=(_drafting(DRAFT),),
    ),
    Case(
        "model.draft.revision",
        "spec.model.draft.revision",
        bad=(_drafting({**DRAFT, "revision": ""}), _drafting({**DRAFT, "revision": "a" * 257})),
        good=(_drafting({**DRAFT, "revision": "a" * 256}),),
    ),
    Case(
        "engine.toolParser",
        "spec.engine.toolParser",
        bad=(_engine(toolParser=""), _engine(toolParser="-x"), _engine(toolParser="a b")),
        good=(_engine(toolParser="hermes"),),
    ),
    Case(
        "engine.reasoningParser",
        "spec.engine.reasoningParser",
        bad=(_engine(reasoningParser="--x"),),
        good=(_engine(reasoningParser="deepseek_r1"),),
    ),
    Case(
        "engine.speculation.method",
        "spec.engine.speculation.method",
        bad=tuple(_engine(speculation={"method": method}) for method in ("", "eagle", "NGRAM")),
        good=(_engine(speculation={"method": "ngram"}),),
    ),
    Case(
        "engine.speculation.numSpeculativeTokens",
        "spec.engine.speculation.numSpeculativeTokens",
        bad=tuple(_engine(speculation={"method": "ngram", "numSpeculativeTokens": count}) for count in (0, 17)),
        good=tuple(_engine(speculation={"method": "ngram", "numSpeculativeTokens": count}) for count in (1, 16)),
    ),
    Case(
        "engine.speculation.promptLookupMin",
        "spec.engine.speculation.promptLookupMin",
        bad=tuple(_engine(speculation={"method": "ngram", "promptLookupMin": count}) for count in (0, 17)),
        good=tuple(_engine(speculation={"method": "ngram", "promptLookupMin": count}) for count in (1, 16)),
    ),
    Case(
        "engine.speculation.promptLookupMax",
        "spec.engine.speculation.promptLookupMax",
        bad=tuple(_engine(speculation={"method": "ngram", "promptLookupMax": count}) for count in (0, 65)),
        good=tuple(_engine(speculation={"method": "ngram", "promptLookupMax": count}) for count in (1, 64)),
    ),
    Case("engine.type", "spec.engine.type", bad=(_engine(type="tgi"), _engine(type="vLLM")), good=(_vllm(),)),
    Case(
        "engine.version",
        "spec.engine.version",
        bad=tuple(_vllm(version=version) for version in ("", "1", "latest", "0.32.0\n", "0." + "1" * 64)),
        good=(_vllm(version="0.32.0.post1+cpu"),),
    ),
    Case(
        "engine.command[0]",
        "spec.engine.command",
        bad=(_custom(command=["x" * 1025]),),
        good=(_custom(command=["llama-server", "-m", "$(SLIPWAY_MODEL_PATH)/m.gguf"]),),
    ),
    Case("engine.command", "spec.engine.command", bad=(_custom(command=["x"] * 65),), good=(_custom(command=[]),)),
    *(
        Case(
            f"engine.custom.{field}",
            f"spec.engine.custom.{field}",
            bad=tuple(_described(**{field: path}) for path in ("health", "/a b", "/a?b", "/" + "a" * 256)),
            good=(_described(**{field: "/v2/health/ready"}),),
        )
        for field in ("readinessPath", "livenessPath", "metricsPath")
    ),
    Case(
        "engine.custom.preStopSeconds",
        "spec.engine.custom.preStopSeconds",
        bad=tuple(_described(preStopSeconds=seconds) for seconds in (4, 3601, "30")),
        good=tuple(_described(preStopSeconds=seconds) for seconds in (5, 3600)),
    ),
    Case(
        "engine.custom.runAsUser",
        "spec.engine.custom.runAsUser",
        bad=tuple(_described(runAsUser=user) for user in (0, -1, 2**31)),
        good=(_described(runAsUser=1000),),
    ),
    *(
        Case(
            f"engine.parallelism.{field}",
            f"spec.engine.parallelism.{field}",
            bad=tuple(_vllm(parallelism={field: number}) for number in (0, -1, most + 1)),
            good=(_vllm(parallelism={"nodes": 2, field: 2}),),
        )
        for field, most in (("nodes", 64), ("tensor", 1024), ("pipeline", 1024))
    ),
    *(
        Case(
            f"engine.custom.workerCommand{suffix}",
            "spec.engine.custom.workerCommand",
            bad=(_custom(custom={"workerCommand": words}, parallelism={"nodes": 2}),),
            good=(_custom(custom={"workerCommand": ["join"]}, parallelism={"nodes": 2}),),
        )
        for suffix, words in (("[0]", ["x" * 1025]), ("", ["x"] * 65))
    ),
    *(
        Case(
            f"engine.custom.metrics.{field}",
            f"spec.engine.custom.metrics.{field}",
            bad=tuple(_metrics(**{field: name}) for name in ("", "a-b", "1a", "a{b}", "a" * 201)),
            good=(_metrics(**{field: "llamacpp:requests_deferred"}),),
        )
        for field in ("queued", "running", "generatedTokens", "promptTokens", "kvCacheUsage", "timeToFirstToken")
    ),
)
