"""Pods of other engines than slipway-server."""

import json
from dataclasses import replace
from typing import Any

import pytest

from slipway_operator.kube.reading.observe import snapshot as parse_snapshot
from slipway_operator.manifests.history import controller_revision
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.deployment.spec import Invalid, parse
from slipway_operator.model.inputs.pod_inputs import (
    DraftSource,
    Engine,
    KeyRef,
    Model,
    PodInputs,
    Resources,
    Speculation,
    checked,
    inputs_to_dict,
    parse_inputs,
)

OWNER = Owner("chat", "team", "u1")
VLLM = Engine("vllm/vllm-openai:v0.32.0", type="vllm", args=("--enable-prefix-caching",))
SGLANG = Engine("lmsysorg/sglang:v0.6.0", type="sglang")
CUSTOM = Engine(
    "llama.cpp:server",
    type="custom",
    command=("llama-server", "-m", "$(SLIPWAY_MODEL_PATH)/m.gguf", "--port", "$(SLIPWAY_PORT)"),
    custom={"readinessPath": "/health", "preStopSeconds": 60, "runAsUser": 1000},
)
GPUS = Resources(accelerator=("nvidia.com/gpu", 4))


def pod(engine: Engine, uri: str = "hf://org/m", resources: Resources = GPUS, **model: Any) -> dict[str, Any]:
    inputs = PodInputs(Model(uri, "m", **model), engine, resources)
    made = Snapshot("abcdefghij", 1, inputs, engine.image or "server:1", 300, 2, fetcher_image="server:1")
    spec: dict[str, Any] = replica_set(OWNER, made, 1)["spec"]["template"]["spec"]
    return spec


def server(*arguments: Any, **model: Any) -> dict[str, Any]:
    container: dict[str, Any] = pod(*arguments, **model)["containers"][0]
    return container


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}


@pytest.mark.parametrize("engine", [Engine(), VLLM, SGLANG], ids=lambda engine: engine.type)
def test_parsers_of_answers_reach_the_engine(engine: Engine) -> None:
    one = Resources()
    args = server(replace(engine, tool_parser="hermes", reasoning_parser="qwen3"), "hf://org/m", one)["args"]
    assert args[args.index("--tool-call-parser") + 1] == "hermes"
    assert args[args.index("--reasoning-parser") + 1] == "qwen3"
    assert ("--enable-auto-tool-choice" in args) == (engine.type == "vllm")
    without = server(engine, "hf://org/m", one)["args"]
    assert not {"--tool-call-parser", "--reasoning-parser", "--enable-auto-tool-choice"} & set(without)


SPECULATION = Speculation("ngram", 5)


def test_speculation_is_in_the_flags_of_each_engine_and_nowhere_without_it() -> None:
    def flags(engine: Engine, speculation: Speculation | None = SPECULATION) -> list[str]:
        args: list[str] = server(replace(engine, speculation=speculation, args=()), "hf://org/m", Resources())["args"]
        without = server(replace(engine, args=()), "hf://org/m", Resources())["args"]
        return [one for one in args if one not in without]

    wide = replace(SPECULATION, lookup_min=2, lookup_max=4)
    assert flags(Engine()) == ["--speculation", "ngram", "--num-speculative-tokens", "5"]
    assert flags(Engine(), wide)[4:] == ["--prompt-lookup-min", "2", "--prompt-lookup-max", "4"]
    # One that is written alone would contradict the server's default for the other one, and no pod would start.
    high, low = replace(SPECULATION, lookup_min=12), replace(SPECULATION, lookup_max=1)
    assert flags(Engine(), high)[4:] == ["--prompt-lookup-min", "12", "--prompt-lookup-max", "12"]
    assert flags(Engine(), low)[4:] == ["--prompt-lookup-min", "1", "--prompt-lookup-max", "1"]
    assert flags(Engine(), replace(SPECULATION, lookup_min=8))[4:] == ["--prompt-lookup-min", "8"]
    assert flags(VLLM) == ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}']
    assert flags(VLLM, wide) == [
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}',
    ]
    # SGLang's number has the next token in it.
    assert flags(SGLANG) == ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "6"]
    for engine in (Engine(), VLLM, SGLANG):
        assert flags(engine, None) == []


def test_a_draft_model_is_fetched_and_in_the_flags_of_each_engine() -> None:
    def pod_of(engine: Engine, model: Model, **more: Any) -> dict[str, Any]:
        inputs = PodInputs(model, replace(engine, args=()), Resources(**more))
        made = Snapshot("abcdefghij", 1, inputs, engine.image or "server:1", 300, 3, fetcher_image="server:1")
        spec: dict[str, Any] = replica_set(OWNER, made, 1)["spec"]["template"]["spec"]
        return spec

    draft = DraftSource("hf://org/small", "main")
    model = Model("hf://org/m", "m", secret=KeyRef("hub", "token"), draft=draft)
    flags = {
        "slipway": "--speculation draft --num-speculative-tokens 6 --speculative-draft-model /mnt/models/draft",
        "vllm": '--speculative-config {"method": "draft_model", "model": "/mnt/models/draft/current", '
        '"num_speculative_tokens": 6}',
        "sglang": "--speculative-algorithm STANDALONE --speculative-draft-model-path /mnt/models/draft/current "
        "--speculative-num-steps 6 --speculative-eagle-topk 1 --speculative-num-draft-tokens 7",
    }
    for engine in (Engine(), VLLM, SGLANG):
        spec = pod_of(engine, model, storage="4Gi")
        assert flags[engine.type] in " ".join(spec["containers"][0]["args"])
        first, second = spec["initContainers"]
        assert (first["name"], second["name"]) == ("fetch", "fetch-draft")
        args = " ".join(second["args"])
        assert args.startswith("--uri hf://org/small --revision main --dest /mnt/models/draft")
        assert ("--any-engine" in args) == (engine.type != "slipway") and args.endswith(f"--max-bytes {4 * 2**30}")
        assert any(variable["name"] == "HF_TOKEN" for variable in second["env"])
    other = pod_of(Engine(), replace(model, draft=DraftSource("s3://bucket/small")))["initContainers"][1]
    assert not any(variable.get("valueFrom", {}).get("secretKeyRef") for variable in other["env"]), "of another source"
    claimed = pod_of(Engine(), replace(model, uri="pvc://claim/m", secret=None))
    (models,) = [volume for volume in claimed["volumes"] if volume["name"] == "models"]
    assert models["emptyDir"]["sizeLimit"] == f"{64 * 1024 + 64}Mi", "the draft model is in it"


def test_a_draft_model_is_a_part_of_the_revision() -> None:
    def inputs(**draft: Any) -> PodInputs:
        return parse_inputs({"model": {"uri": "hf://org/m", **({"draft": draft} if draft else {})}}, "m")

    found = [inputs(), inputs(uri="hf://org/small"), inputs(uri="hf://org/small", revision="v2")]
    assert len({each.canonical for each in found}) == 3
    for each in found:
        assert parse_inputs(json.loads(each.canonical), "m") == each


@pytest.mark.parametrize(
    ("model", "engine", "sentence"),
    [
        ({"draft": {"uri": "hf://org/small"}}, {"speculation": {"method": "ngram"}}, "go together"),
        ({}, {"speculation": {"method": "draft"}}, "go together"),
        ({"draft": {"uri": "hf://org/small"}, "task": "embed"}, {}, "for language models"),
    ],
)
def test_a_draft_model_that_no_pod_can_have_is_refused(
    model: dict[str, Any], engine: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        checked(parse_inputs({"model": {"uri": "hf://org/m", **model}, "engine": engine}, "m"))


def test_speculation_is_a_part_of_the_revision() -> None:
    def inputs(**speculation: Any) -> PodInputs:
        record = {"model": {"uri": "hf://org/m"}, "engine": {"speculation": speculation} if speculation else {}}
        return parse_inputs(record, "m")

    plain, given = inputs(), inputs(method="ngram", numSpeculativeTokens=4, promptLookupMin=2, promptLookupMax=9)
    assert given.engine.speculation == Speculation("ngram", 4, 2, 9)
    assert given.canonical != plain.canonical
    assert inputs(method="ngram").canonical == inputs(method="ngram", numSpeculativeTokens=6).canonical
    for each in (plain, given):
        assert parse_inputs(json.loads(each.canonical), "m") == each


@pytest.mark.parametrize(
    ("engine", "task", "sentence"),
    [
        (replace(CUSTOM, speculation=SPECULATION), "auto", "not for the engine type custom"),
        (replace(VLLM, speculation=SPECULATION), "embed", "for models that generate text"),
        (replace(SGLANG, speculation=replace(SPECULATION, lookup_max=3)), "auto", "not for sglang"),
    ],
)
def test_speculation_that_no_pod_can_have_is_refused_by_name(engine: Engine, task: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"spec.engine.speculation.*{sentence}"):
        checked(PodInputs(Model("hf://org/m", "m", task=task), engine))


def test_vllm_gets_the_flags_that_follow_from_the_spec() -> None:
    container = server(VLLM, max_model_len_tokens=4096, dtype="bfloat16")
    assert container["command"] == ["vllm", "serve"]
    assert container["args"] == [
        "/mnt/models/current",
        *("--served-model-name", "m", "--host", "0.0.0.0", "--port", "8000"),
        *("--dtype", "bfloat16", "--max-model-len", "4096", "--tensor-parallel-size", "4"),
        *("--shutdown-timeout", "300", "--enable-prefix-caching"),
    ]
    plain = server(VLLM, "hf://org/m", Resources())["args"]
    assert not {"--dtype", "--max-model-len", "--tensor-parallel-size", "--runner"} & set(plain)
    assert "--runner pooling" in " ".join(server(VLLM, task="embed")["args"])


def test_sglang_gets_the_flags_that_follow_from_the_spec() -> None:
    container = server(SGLANG, max_model_len_tokens=4096)
    assert container["command"] == ["python3", "-m", "sglang.launch_server"]
    assert container["args"] == [
        *("--model-path", "/mnt/models/current", "--served-model-name", "m", "--host", "0.0.0.0", "--port", "8000"),
        *("--context-length", "4096", "--tp-size", "4", "--enable-metrics"),
    ]


def test_a_custom_engine_runs_the_command_of_the_spec_with_values_of_the_operator() -> None:
    container = server(CUSTOM)
    assert container["command"] == list(CUSTOM.command)
    assert container["args"] == []
    values = variables(container)
    assert (values["SLIPWAY_MODEL_PATH"], values["SLIPWAY_MODEL_NAME"]) == ("/mnt/models/current", "m")
    assert values["SLIPWAY_PORT"] == "8000"
    assert "command" not in server(replace(CUSTOM, command=())), "without a command the image's entrypoint runs"
    forged = replace(CUSTOM, env=(("SLIPWAY_MODEL_PATH", "/etc"), ("HOME", "/root")))
    assert variables(server(forged))["SLIPWAY_MODEL_PATH"] == "/mnt/models/current"
    assert variables(server(forged))["HOME"] == "/root"


@pytest.mark.parametrize("engine", [VLLM, SGLANG, CUSTOM], ids=lambda engine: engine.type)
def test_grace_covers_the_time_before_sigterm_and_the_drain(engine: Engine) -> None:
    spec = pod(engine)
    pre_stop = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] >= pre_stop + 300 + 10


def test_probes_follow_the_engine() -> None:
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    assert {server(VLLM)[name]["httpGet"]["path"] for name in probes} == {"/health"}
    sglang = server(SGLANG)
    assert sglang["readinessProbe"]["timeoutSeconds"] == 25, "its /health generates a token"
    assert sglang["livenessProbe"]["httpGet"]["path"] == "/ping"
    assert server(CUSTOM)["livenessProbe"]["tcpSocket"] == {"port": "http"}
    with_path = replace(CUSTOM, custom={"livenessPath": "/v1/health/live"})
    assert server(with_path)["livenessProbe"]["httpGet"]["path"] == "/v1/health/live"
    for engine in (VLLM, SGLANG, CUSTOM):
        probe = server(engine)["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= 3600
        assert server(engine)["livenessProbe"]["failureThreshold"] >= 6, "a busy engine may take seconds"


def test_only_slipway_server_gets_tenant_keys() -> None:
    for engine in (VLLM, SGLANG, CUSTOM):
        text = json.dumps(pod(engine))
        assert "slipway-tenant-key" not in text and "SLIPWAY_DEPLOYMENT" not in text
    assert "slipway-tenant-key" in json.dumps(pod(Engine()))


@pytest.mark.parametrize("engine", [VLLM, SGLANG, CUSTOM], ids=lambda engine: engine.type)
@pytest.mark.attack_class(22)
def test_pods_of_every_engine_meet_the_restricted_level(engine: Engine) -> None:
    spec = pod(engine)
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False, "a Service named vllm would set VLLM_PORT to a URL"
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert spec["initContainers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_fetcher_runs_in_slipways_image_and_takes_files_for_any_engine() -> None:
    spec = pod(VLLM, secret=KeyRef("hub", "HF_TOKEN"))
    fetcher, engine = spec["initContainers"][0], spec["containers"][0]
    assert (fetcher["image"], engine["image"]) == ("server:1", "vllm/vllm-openai:v0.32.0")
    assert "--any-engine" in fetcher["args"]
    assert "HF_TOKEN" in variables(fetcher) and "HF_TOKEN" not in variables(engine)
    assert "--any-engine" not in pod(Engine())["initContainers"][0]["args"]


def test_a_model_in_the_engines_image_needs_no_fetcher() -> None:
    spec = pod(VLLM, "file:///models/llama")
    assert "initContainers" not in spec
    assert spec["containers"][0]["args"][0] == "/models/llama"
    assert "weights" not in [volume["name"] for volume in spec["volumes"]]


def test_shared_memory_follows_the_number_of_devices_or_the_spec() -> None:
    def size(engine: Engine, resources: Resources) -> str | None:
        volumes = {volume["name"]: volume for volume in pod(engine, "hf://org/m", resources)["volumes"]}
        return volumes["shm"]["emptyDir"]["sizeLimit"] if "shm" in volumes else None

    assert [size(VLLM, resources) for resources in (Resources(), GPUS)] == ["1Gi", "8Gi"]
    assert size(VLLM, Resources(shared_memory="16Gi")) == "16Gi"
    assert size(CUSTOM, Resources()) is None and size(Engine(), Resources()) is None
    mounts = {mount["mountPath"] for mount in server(VLLM)["volumeMounts"]}
    assert "/dev/shm" in mounts


def test_caches_are_written_to_a_volume() -> None:
    values = variables(server(VLLM))
    for name in ("HOME", "HF_HOME", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert values[name].startswith("/tmp")
    assert values["USER"], "the user has no entry in /etc/passwd of the image"


ENGINES = (
    {"type": "vllm", "image": "vllm/vllm-openai:v0.32.0", "version": "0.32.0"},
    {"type": "sglang", "image": "lmsysorg/sglang:v0.6.0"},
    {
        "type": "custom",
        "image": "llama.cpp:server",
        "command": ["llama-server"],
        "custom": {"readinessPath": "/ok", "metrics": {"queued": "llamacpp:requests_deferred"}, "runAsUser": 1000},
    },
)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine["type"])
def test_a_revision_keeps_its_engine(engine: dict[str, Any]) -> None:
    spec = {"model": {"uri": "hf://org/m"}, "engine": engine, "resources": {"sharedMemory": "2Gi"}}
    parsed = parse({"metadata": {"name": "chat"}, "spec": spec})
    assert not isinstance(parsed, Invalid)
    record = inputs_to_dict(parsed.inputs)
    assert record["engine"] == engine
    assert parse_inputs(json.loads(json.dumps(record)), "chat") == parsed.inputs
    made = Snapshot("abcdefghij", 1, parsed.inputs, engine["image"], 300, 2, fetcher_image="server:1")
    read = parse_snapshot(json.loads(json.dumps(controller_revision(OWNER, made))), "chat")
    assert read is not None and replace(read, name="") == made


def test_a_default_written_by_the_api_server_changes_no_revision() -> None:
    def inputs(**engine: Any) -> PodInputs:
        parsed = parse({"metadata": {"name": "chat"}, "spec": {"model": {"uri": "hf://org/m"}, "engine": engine}})
        assert not isinstance(parsed, Invalid)
        return parsed.inputs

    assert inputs(type="slipway", args=["--a"]).canonical == inputs(args=["--a"]).canonical
    full = {"readinessPath": "/health", "metricsPath": "/metrics", "preStopSeconds": 30, "runAsUser": 65532}
    custom = {"type": "custom", "image": "i:1"}
    assert inputs(**custom, custom=full).canonical == inputs(**custom).canonical


def test_another_engine_without_an_image_is_refused() -> None:
    parsed = parse({"metadata": {"name": "c"}, "spec": {"model": {"uri": "hf://o/m"}, "engine": {"type": "vllm"}}})
    assert isinstance(parsed, Invalid) and "spec.engine.image is required" in parsed.message
