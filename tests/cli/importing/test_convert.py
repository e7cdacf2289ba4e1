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
