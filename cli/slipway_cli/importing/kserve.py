"""KServe's InferenceService (v1beta1) and LLMInferenceService as ModelDeployments (pure).

https://kserve.github.io/website: "Control Plane API", "LLMInferenceService Configuration Guide".
"""

from slipway_cli.importing.fields import Fields, Unusable
from slipway_cli.importing.manifest import (
    Imported,
    new,
    put_env,
    put_name,
    put_placement,
    put_replicas,
    put_resources,
    put_uri,
)
from slipway_cli.importing.vllm_args import put_args, put_image

# By KServe's name: task and format. Slipway loads no pickles, which the other formats of scikit-learn are.
_FORMATS = {
    "onnx": ("predict", "onnx"),
    "xgboost": ("predict", "xgboost"),
    "lightgbm": ("predict", "lightgbm"),
    "sklearn": ("predict", "skops"),
    "huggingface": ("auto", ""),
    "vllm": ("auto", ""),
}
_OLD = (*_FORMATS, "tensorflow", "pytorch", "triton", "pmml", "paddle")  # predictor.NAME, before predictor.model
_PATH = "spec.predictor"


def inference_service(obj: Fields) -> Imported:
    """The ModelDeployment of an InferenceService. Raises Unusable."""
    made = new(obj.child("metadata"), "InferenceService")
    spec = obj.child("spec")
    predictor = spec.child("predictor")
    for name in ("transformer", "explainer"):
        if name in spec:
            spec.skip(name)
            made.notes.append(f"spec.{name}: not mapped: run it beside, as a client of the model")
    least = predictor.number("minReplicas")
    put_replicas(made, 1 if least is None else least, predictor.number("maxReplicas"), f"{_PATH}.minReplicas")
    if (percent := predictor.number("canaryTrafficPercent")) is not None:
        if not 0 <= percent <= 100:
            raise Unusable(f"{_PATH}.canaryTrafficPercent is {percent}: it is 0 to 100")
        made.put("strategy.canary", {"trafficPercent": percent})
    _scaling(made, predictor)
    _model(made, predictor)
    put_placement(made, predictor)
    obj.skip("apiVersion", "kind", "status")
    made.note_rest(obj)
    return made


def llm_inference_service(obj: Fields) -> Imported:
    """The ModelDeployment of an LLMInferenceService, whose pods run vLLM. Raises Unusable."""
    made = new(obj.child("metadata"), "LLMInferenceService")
    spec = obj.child("spec")
    if "prefill" in spec:
        raise Unusable("spec.prefill: disaggregated prefill has no counterpart: a ModelDeployment does both in one pod")
    model = spec.child("model")
    put_uri(made, model.text("uri"), "spec.model.uri")
    put_name(made, model.text("name"), "spec.model.name")
    put_replicas(made, spec.number("replicas"), None, "spec.replicas")
    parallelism = spec.child("parallelism")
    for name in ("tensor", "pipeline"):
        made.put(f"engine.parallelism.{name}", parallelism.number(name))
    template = spec.child("template")
    containers = template.children("containers")
    main = next((one for one in containers if one.text("name") == "main"), None)
    if main:
        _container(made, main, vllm=True)
    else:
        put_image(made, "", "spec.template")
    put_placement(made, template)
    spec.skip("router")
    if "baseRefs" in spec:
        spec.skip("baseRefs")
        made.notes.append("spec.baseRefs: not read: write what they set into this ModelDeployment")
    obj.skip("apiVersion", "kind", "status")
    made.note_rest(obj)
    return made


def _scaling(made: Imported, predictor: Fields) -> None:
    metric, target = predictor.text("scaleMetric"), predictor.number("scaleTarget")
    if "autoscaling" not in made.spec:
        return
    if metric in (None, "concurrency") and target:
        made.spec["autoscaling"]["metrics"] = [{"type": "InFlight", "target": str(target)}]
    elif metric in ("cpu", "memory") and target:
        kind = {"cpu": "CPU", "memory": "Memory"}[metric]
        made.spec["autoscaling"]["metrics"] = [{"type": kind, "target": f"{target}%"}]
    elif metric == "rps":
        made.notes.append(f"{_PATH}.scaleMetric: rps is not mapped: spec.autoscaling counts requests in progress")


def _model(made: Imported, predictor: Fields) -> None:
    model, name = predictor.child("model"), ""
    path = f"{_PATH}.model"
    if model.names():
        wanted = model.child("modelFormat")
        name, version = wanted.text("name") or "", wanted.quantity("version")
        if version:
            made.notes.append(f"{path}.modelFormat.version: {version} is not mapped: the file says what it is")
        model.skip("protocolVersion")
    else:
        name = next((one for one in _OLD if one in predictor), "")
        if not name:
            raise Unusable(
                f"{_PATH} has neither model nor a known format; a custom container is spec.engine.type: custom"
            )
        model, path = predictor.child(name), f"{_PATH}.{name}"
        model.skip("protocolVersion")
    if name not in _FORMATS:
        known = ", ".join(_FORMATS)
        raise Unusable(f"{path}.modelFormat.name is {name[:40]!r}: Slipway serves {known}; export the model to onnx")
    task, form = _FORMATS[name]
    put_uri(made, _storage(model, path), f"{path}.storageUri")
    made.put("model.task", task if form else None)
    made.put("model.format", form)
    if name == "sklearn":
        made.notes.append(
            "spec.model.format: skops, because Slipway loads no pickle or joblib: save the model by skops.io.dump "
            "(docs/predict.md)"
        )
    if runtime := model.text("runtime"):
        made.notes.append(f"{path}.runtime: {runtime[:63]} is not mapped: slipway-server runs the model")
    _container(made, model)


def _storage(model: Fields, path: str) -> str | None:
    if "storageUri" in model:
        return model.text("storageUri")
    if "storage" in model:
        raise Unusable(f"{path}.storage: write its bucket and path as storageUri: s3://bucket/folder")
    return None


def _container(made: Imported, container: Fields, *, vllm: bool = False) -> None:
    container.skip("name")
    put_resources(made, container.child("resources"))
    put_env(made, container.children("env"))
    image, args = container.text("image") or "", container.texts("args")
    if vllm:
        put_image(made, image, f"{container.path}.image")
        put_args(made, args, f"{container.path}.args")
        return
    if image:
        made.notes.append(f"{container.path}.image: {image[:200]} is not mapped: slipway-server runs the model")
    for word in args:
        if word.startswith(("--model_name=", "--model-name=")):
            put_name(made, word.partition("=")[2], f"{container.path}.args")
        else:
            made.notes.append(f"{container.path}.args: {word[:100]} is not mapped")
