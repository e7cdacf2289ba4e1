"""What other tools' manifests become, what does not map, and what a stranger's file may hold."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slipway_cli.importing.convert import convert
from slipway_cli.importing.fields import MAX_DEPTH, MAX_VALUES, Unusable
from slipway_cli.importing.manifest import Imported, render, sentences

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*/*.yaml"))


def read(path: str, uri: str = "") -> list[Imported]:
    return convert(yaml.safe_load((FOLDER / path).read_text()), uri)


def changed(path: str, **spec: Any) -> dict[str, Any]:
    found = yaml.safe_load((FOLDER / path).read_text())
    found["spec"] = {**found["spec"], **spec}
    return dict(found)


def test_an_inference_service_of_a_language_model() -> None:
    [made] = read("kserve/huggingface.yaml")
    assert made.spec["model"] == {
        "revision": "main",
        "uri": "hf://meta-llama/meta-llama-3-8b-instruct",
        "secretRef": {"name": "hf-secret", "key": "HF_TOKEN"},
        "name": "llama3",
    }
    assert made.spec["replicas"] == 2
    assert made.spec["resources"] == {"cpu": "6", "memory": "24Gi", "accelerator": {"count": 1}}
    assert made.spec["placement"]["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    assert any("--model_id" in note for note in made.notes)


def test_a_canary_and_what_it_lacks() -> None:
    [made] = read("kserve/canary.yaml")
    assert made.spec["strategy"] == {"canary": {"trafficPercent": 10}}
    assert made.spec["model"] == {"uri": "pvc://models/fraud/v2", "task": "predict", "format": "onnx"}
    assert "spec.predictor.timeout: not mapped" in made.notes
    assert "spec.predictor.timeout: not mapped" in render(made)


def test_to_zero_and_back() -> None:
    [made] = read("kserve/old_style.yaml")
    scaling = made.spec["autoscaling"]
    assert (scaling["minReplicas"], scaling["maxReplicas"], scaling["idleSeconds"]) == (0, 3, 300)
    assert scaling["metrics"] == [{"type": "InFlight", "target": "10"}]


def test_steps_of_argo_have_the_same_names() -> None:
    [made] = read("argo/basic.yaml")
    steps = made.spec["strategy"]["canary"]["steps"]
    assert steps[:4] == [{"setWeight": 20}, {"pause": {}}, {"setWeight": 40}, {"pause": {"duration": "10s"}}]
    assert steps[-1] == {"pause": {"duration": "1h30m"}}
    assert made.spec["model"] == {"maxModelLen": 4096, "uri": "hf://Qwen/Qwen2.5-1.5B-Instruct"}
    assert made.notes == []


def test_a_rollout_without_a_model_needs_one() -> None:
    with pytest.raises(Unusable, match="--uri"):
        read("argo/analysis.yaml")
    [made] = read("argo/analysis.yaml", "hf://org/model")
    canary = made.spec["strategy"]["canary"]
    assert canary["steps"][0] == {"setCanaryScale": {"replicas": 1}}
    assert canary["steps"][2]["analysis"]["templates"] == [{"templateName": "llm-default"}]
    assert canary["analysis"]["startingStep"] == 2
    assert canary["steps"][-1] == {"setMirrorRoute": {"name": "mirror", "percentage": 35}}


def test_values_of_the_chart() -> None:
    [made] = read("production_stack/basic.yaml")
    assert made.spec["engine"]["image"] == "vllm/vllm-openai:v0.19.1"
    assert made.spec["engine"]["args"] == [
        *("--no-enable-prefix-caching", "--no-enable-chunked-prefill", "--disable-log-requests"),
        *("--gpu-memory-utilization", "0.8"),
    ]
    assert made.spec["model"]["maxModelLen"] == 4096
    assert [one.name for one in read("production_stack/two_models.yaml")] == ["llama3", "phi"]


def test_an_image_that_is_too_old_is_replaced_and_named() -> None:
    [made] = read("llm_inference_service/small.yaml")
    assert made.spec["engine"]["image"] == "vllm/vllm-openai:v0.32.0"
    assert any("vllm/vllm-openai:v0.10.2 does not say" in note for note in made.notes)
    [made] = read("production_stack/multi_gpu.yaml")
    assert any("lmcache/vllm-openai:v0.3.1 does not say" in note for note in made.notes)


def test_models_of_kubeai() -> None:
    [made] = read("kubeai/scaled.yaml")
    assert made.spec["resources"]["accelerator"] == {"count": 1, "type": "h100"}
    assert made.spec["traffic"]["loadBalancing"]["policy"] == "PrefixAffinity"
    assert made.spec["autoscaling"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600


def noted(made: Imported, text: str) -> bool:
    return any(text in note for note in made.notes)


def test_ten_manifests_of_each_tool() -> None:
    counts = {folder.name: len(list(folder.glob("*.yaml"))) for folder in FOLDER.iterdir() if folder.is_dir()}
    counts.pop("__pycache__", None)
    assert len(counts) == 5 and min(counts.values()) >= 10


def test_adapters_of_kubeai_keep_the_names_that_clients_send() -> None:
    base, colorist, legal = read("kubeai/many_adapters.yaml")
    assert base.spec["adapters"] == {"maxRank": 64, "maxLoaded": 2} and "args" not in base.spec["engine"]
    assert (colorist.kind, colorist.name) == ("ModelAdapter", "colorist")
    assert colorist.spec == {
        "deploymentRef": {"name": "tuned"},
        "model": {"uri": "hf://org/colorist", "name": "tuned_colorist"},
    }
    assert legal.spec["model"]["uri"] == "s3://adapters/legal"
    assert noted(base, "oss://adapters/cn: adapters are downloaded from")
    assert base.spec["replicas"] == 2


def test_adapters_of_an_llm_inference_service() -> None:
    base, sql, bot = read("llm_inference_service/lora.yaml")
    assert base.spec["adapters"] == {
        "maxLoaded": 4,
        "maxRank": 64,
        "secretRef": {"name": "hub"},
    }  # 40 is no rank of vLLM
    assert sql.spec["model"] == {"uri": "hf://org/sql-lora", "revision": "v2"} and sql.namespace == "team-b"
    assert (bot.name, bot.spec["model"]["name"]) == ("support-bot", "Support_Bot")
    assert noted(base, "pvc://adapters/local")


def test_adapters_of_production_stack() -> None:
    base, sql = read("production_stack/lora.yaml")
    assert base.spec["adapters"] == {"maxLoaded": 4, "maxRank": 8, "secretRef": {"name": "hub"}}
    assert base.spec["resources"]["sharedMemory"] == "20Gi"
    assert sql.spec == {"deploymentRef": {"name": "base"}, "model": {"uri": "hf://org/sql-lora", "name": "sql_v1"}}
    [legal] = read("production_stack/lora_adapter.yaml")
    assert legal.kind == "ModelAdapter" and legal.spec["deploymentRef"] == {"name": "base-model"}
    assert noted(legal, "which needs spec.adapters") and noted(legal, "write aws into spec.adapters.secretRef")


def test_several_nodes() -> None:
    for path in ("kserve/multi_node.yaml", "llm_inference_service/multi_node.yaml"):
        [made] = read(path)
        assert made.spec["engine"]["parallelism"] == {"nodes": 2, "pipeline": 2, "tensor": 8}, path
        assert made.spec["resources"]["accelerator"] == {"count": 8}, path
    [made] = read("production_stack/ray.yaml")
    assert made.spec["engine"]["parallelism"] == {"nodes": 2, "pipeline": 2, "tensor": 4}
    assert made.spec["pod"] == {"runtimeClassName": "nvidia"} and noted(made, "no Ray")


def test_scaling_of_each_tool() -> None:
    scaling = {
        path: read(path)[0].spec["autoscaling"]
        for path in (
            *("kserve/autoscaled.yaml", "kserve/azure_batched.yaml", "llm_inference_service/scaling.yaml"),
            *("production_stack/keda.yaml", "kubeai/patched.yaml"),
        )
    }
    assert scaling["kserve/autoscaled.yaml"]["metrics"] == [
        {"type": "InFlight", "target": "4"},
        {"type": "CPU", "target": "60%"},
    ]
    assert scaling["kserve/azure_batched.yaml"]["metrics"] == [{"type": "CPU", "target": "70%"}]
    window = scaling["llm_inference_service/scaling.yaml"]["behavior"]["scaleDown"]
    assert window["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 60}]
    keda = scaling["production_stack/keda.yaml"]
    assert (keda["minReplicas"], keda["maxReplicas"], keda["idleSeconds"]) == (0, 5, 360)
    assert keda["metrics"] == [{"type": "QueueDepth", "target": "5"}]
    assert scaling["kubeai/patched.yaml"]["behavior"] == {"scaleDown": {"stabilizationWindowSeconds": 3600}}


def test_files_variables_and_secrets() -> None:
    [made] = read("kubeai/files.yaml")
    assert made.spec["pod"]["volumes"] == [{"name": "files", "configMap": {"name": "templated-files"}}]
    assert made.spec["engine"]["volumeMounts"][0]["subPath"] == "file-0" and noted(made, "as file-0 into the ConfigMap")
    [made] = read("kubeai/from_secrets.yaml")
    assert made.spec["engine"]["envFrom"][1] == {"prefix": "V_", "configMapRef": {"name": "settings"}}
    assert noted(made, "MY_API_KEY: looks like a secret") and "abc" not in render(made)
    [made] = read("kserve/custom_vllm.yaml")
    assert made.spec["model"] == {"name": "chat", "uri": "s3://models/chat"}
    assert made.spec["resources"] == {"accelerator": {"count": 2}, "sharedMemory": "8Gi"}
    assert [one["name"] for one in made.spec["engine"]["env"]] == ["MODE"]
    assert noted(made, "VLLM_API_KEY is not mapped") and noted(made, "--api-key")


def test_storage_of_kserve() -> None:
    [made] = read("kserve/storage_key.yaml")
    assert made.spec["model"]["uri"] == "s3://models/boosters/v3" and noted(made, "storage-config")
    assert "accelerator" not in made.spec["resources"] and noted(made, "runs on CPUs")
    [made] = read("kserve/azure_batched.yaml")
    assert (
        made.spec["model"]["objectStore"] == {"account": "acct"}
        and made.spec["model"]["uri"] == "az://models/credit/v1"
    )
    assert made.spec["batching"] == {"maxBatchSize": 64, "maxQueueDelayMicroseconds": 20_000}
    [made] = read("kserve/modelcar.yaml")
    assert made.spec["model"]["uri"].endswith("/iris:latest") and noted(made, "has no tag")


def test_routes_of_argo_and_what_they_cannot_say() -> None:
    [made] = read("argo/routes.yaml")
    steps = made.spec["strategy"]["canary"]["steps"]
    match = [{"headerName": "X-Team", "headerValue": {"prefix": "a"}}]
    assert steps[1] == {"setMirrorRoute": {"name": "copies", "percentage": 20, "match": match}}
    assert [next(iter(step)) for step in steps] == [
        *("setHeaderRoute", "setMirrorRoute", "pause", "setHeaderRoute", "setWeight")
    ]
    assert noted(made, "steps[5].setHeaderRoute.match[0]: a header is compared by exact or prefix alone")


def test_an_analysis_starts_at_the_step_that_it_named() -> None:
    """Argo counts the steps that are left out, too."""
    [made] = read("argo/inline.yaml")
    canary = made.spec["strategy"]["canary"]
    assert "analysis" in canary["steps"][canary["analysis"]["startingStep"]]


def test_a_preview_of_argo() -> None:
    [made] = read("argo/preview.yaml")
    found = made.spec["strategy"]["blueGreen"]
    assert found["autoPromotionEnabled"] is True and found["autoPromotionSeconds"] == 120
    assert found["previewReplicaCount"] == 1 and found["scaleDownDelaySeconds"] == 86_400
    assert noted(made, "100000 is above the most")


def test_the_pods_of_a_workload_ref() -> None:
    pod = yaml.safe_load((FOLDER / "argo/plain.yaml").read_text())["spec"]["template"]
    document = changed("argo/plain.yaml", workloadRef={"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"})
    document["spec"].pop("template")
    with pytest.raises(Unusable, match=r"spec\.workloadRef: Deployment 'web' is not among the files"):
        convert(document)
    [made] = convert(document, workloads={("", "web"): {"kind": "Deployment", "spec": {"template": pod}}})
    assert made.spec["model"]["uri"] == "hf://org/model"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (10**25, "not within 64 bits"),
        (float("nan"), "not within 64 bits"),
        ([{"name": "A", "value": True}], r"env\[0\].value is no text or a number"),
        ([{"name": "A b", "value": "x"}], "spec.engine.env.* 'A b'"),
        ([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "x"}}}], "secretKeyRef.key is missing"),
    ],
)
def test_a_variable_that_is_none_is_named(value: Any, message: str) -> None:
    document = yaml.safe_load((FOLDER / "llm_inference_service/small.yaml").read_text())
    document["spec"]["template"]["containers"][0]["env"] = value
    with pytest.raises(Unusable, match=message):
        convert(document)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--served-model", "x"], "write it in full"),
        (["--dtype=int3"], "dtype"),
        (["--max-model-len=1"], "spec.model.maxModelLen would be '1': it is 16 to 10000000"),
    ],
)
def test_arguments_that_the_operator_writes(args: list[str], message: str) -> None:
    with pytest.raises(Unusable, match=message):
        convert(changed("kubeai/llama.yaml", args=args))


def test_lora_modules_become_adapters() -> None:
    args = ["--enable-lora", "--lora-modules", "sql=org/sql", '{"name": "law", "path": "/mnt/law"}', "--max-loras=3"]
    base, sql = convert(changed("kubeai/llama.yaml", args=args))
    assert base.spec["adapters"]["maxLoaded"] == 3 and sql.spec["model"]["uri"] == "hf://org/sql"
    assert noted(base, "is a folder: upload it")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_nothing_is_left_out_in_silence(path: Path) -> None:
    """Each leaf of a file is read, skipped by name, or named in a note."""
    for made in read(f"{path.parent.name}/{path.name}", "hf://org/model"):
        assert yaml.safe_load(render(made))["metadata"]["name"] == made.name
        assert all(note.isprintable() for note in sentences(made))


@pytest.mark.parametrize(
    ("path", "spec", "message"),
    [
        ("kserve/canary.yaml", {"predictor": []}, "spec.predictor is no object"),
        ("kserve/canary.yaml", {"predictor": {"minReplicas": "2"}}, "spec.predictor.minReplicas is no whole number"),
        ("kserve/canary.yaml", {"predictor": {"minReplicas": 10**9}}, "not within 0 and 10000"),
        ("kserve/canary.yaml", {"predictor": {"canaryTrafficPercent": 101}}, "0 to 100"),
        ("kserve/canary.yaml", {"predictor": {"model": {"modelFormat": {"name": "pmml"}}}}, "pmml.*onnx"),
        ("kserve/sklearn.yaml", {"predictor": {"sklearn": {"storageUri": "ftp://x"}}}, "ftp.*Slipway reads"),
        ("llm_inference_service/small.yaml", {"prefill": {}}, "prefill"),
        ("argo/basic.yaml", {"strategy": {"canary": {"steps": [{"setWeight": 200}]}}}, "0 to 100"),
        ("argo/basic.yaml", {"strategy": {"canary": {"steps": [{"pause": {"duration": "soon"}}]}}}, "soon"),
        ("kubeai/llama.yaml", {"engine": "OLlama"}, "OLlama has no counterpart"),
        ("kubeai/llama.yaml", {"resourceProfile": "x"}, "NAME:COUNT"),
        ("kubeai/llama.yaml", {"args": ["--max-model-len", "much"]}, "no number"),
    ],
)
def test_what_cannot_be_converted_is_named(path: str, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(Unusable, match=message):
        convert(changed(path, **spec))


def test_a_file_is_bounded_before_it_is_read() -> None:
    aliases = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(8)
    )
    with pytest.raises(Unusable, match=f"more than {MAX_VALUES} values"):
        convert(yaml.safe_load(aliases))
    deep: Any = "x"
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(Unusable, match="levels"):
        convert(deep)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_whatever_a_field_holds_it_is_converted_or_refused(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(FILES))
    document = yaml.safe_load(path.read_text())
    places: list[tuple[Any, Any]] = []
    stack = [document]
    while stack:
        item = stack.pop()
        keys = list(item) if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        places += [(item, key) for key in keys]
        stack += [item[key] for key in keys]
    place, key = data.draw(st.sampled_from(places))
    place[key] = data.draw(JSON)
    try:
        found = convert(document, "hf://org/model")
    except Unusable as error:
        assert str(error)
        return
    for made in found:
        yaml.safe_load(render(made))
