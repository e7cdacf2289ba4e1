"""KServe's InferenceService (v1beta1) as a ModelDeployment (pure).

https://kserve.github.io/website: "Control Plane API", "Autoscaling", "Multi-node Inference", "Storage".
"""

from itertools import pairwise
from typing import Any

from slipway_cli.importing.fields import Fields, Unusable
from slipway_cli.importing.manifest import Imported, new, put_name, put_replicas, put_uri
from slipway_cli.importing.pods import (
    put_drain,
    put_env,
    put_env_from,
    put_labels,
    put_placement,
    put_resources,
    put_volumes,
)
from slipway_cli.importing.vllm_args import IMAGE, put_args, put_image

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
_PROBES = ("ports", "imagePullPolicy", "readinessProbe", "livenessProbe", "startupProbe", "securityContext")
_RESOURCES = {"cpu": "CPU", "memory": "Memory"}


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
    if "containers" in predictor and not any(name in predictor for name in ("model", *_OLD)):
        _custom(made, predictor)
    else:
        _model(made, predictor)
    if "workerSpec" in predictor:
        _workers(made, predictor.child("workerSpec"))
    _batcher(made, predictor)
    put_placement(made, predictor)
    put_drain(made, predictor)
    put_labels(made, predictor)
    obj.skip("apiVersion", "kind", "status")
    made.note_rest(obj)
    return made


def _scaling(made: Imported, predictor: Fields) -> None:
    metric, target = predictor.text("scaleMetric"), predictor.within("scaleTarget", 1, 2**31 - 1)
    kind = predictor.text("scaleMetricType")
    auto = predictor.child("autoScaling")
    if "autoscaling" not in made.spec:
        auto.skip("metrics")
        return
    if metric in (None, "concurrency") and target:
        made.spec["autoscaling"]["metrics"] = [{"type": "InFlight", "target": str(target)}]
    elif metric in ("cpu", "memory") and target:
        amount = f"{target}%" if kind in (None, "Utilization") else f"{target}{'m' if metric == 'cpu' else 'Mi'}"
        made.spec["autoscaling"]["metrics"] = [{"type": _RESOURCES[metric], "target": amount}]
    elif metric == "rps":
        made.notes.append(f"{_PATH}.scaleMetric: rps is not mapped: spec.autoscaling counts requests in progress")
    elif metric not in (None, "concurrency", "cpu", "memory"):
        raise Unusable(f"{_PATH}.scaleMetric is {metric[:40]!r}: KServe has concurrency, rps, cpu and memory")
    metrics = [one for item in auto.children("metrics") if (one := _metric(made, item))]
    if metrics:
        made.spec["autoscaling"]["metrics"] = metrics
    if "behavior" in auto:
        auto.skip("behavior")
        made.notes.append(f"{auto.path}.behavior: not mapped: see spec.autoscaling.behavior")


def _metric(made: Imported, item: Fields) -> dict[str, Any] | None:
    """A metric of predictor.autoScaling: those of resources map, those of Prometheus are the operator's own."""
    resource, pod = item.child("resource"), item.child("podmetric")
    item.skip("type")
    name, target = resource.text("name"), resource.child("target")
    share, value = (
        target.within("averageUtilization", 1, 9999),
        target.quantity("averageValue") or target.quantity("value"),
    )
    target.skip("type", "value")
    if name in _RESOURCES and (share or value):
        return {"type": _RESOURCES[name], "target": f"{share}%" if share else str(value)}
    query = pod.child("metric").text("query") or item.child("external").child("metric").text("query") or ""
    item.skip("external", "podmetric")
    wanted = pod.child("target").quantity("value") or item.child("external").child("target").quantity("value")
    for child in (pod, item.child("external")):
        for part in ("metric", "target"):
            child.child(part).skip(*child.child(part).names())
    if "num_requests_waiting" in query and wanted:
        return {"type": "QueueDepth", "target": wanted}
    if "num_requests_running" in query and wanted:
        return {"type": "InFlight", "target": wanted}
    made.notes.append(f"{item.path}: not mapped: {query[:100] or 'its source'}; see spec.autoscaling.metrics")
    return None


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
    args = model.texts("args")
    put_uri(made, _storage(made, model, path) or _model_id(args), f"{path}.storageUri")
    made.put("model.task", task if form else None)
    made.put("model.format", form)
    if name == "sklearn":
        made.notes.append(
            "spec.model.format: skops, because Slipway loads no pickle or joblib: save the model by skops.io.dump "
            "(docs/predict.md)"
        )
    if runtime := model.text("runtime"):
        server = "slipway-server" if form else "slipway-server, or vLLM on several devices,"
        made.notes.append(f"{path}.runtime: {runtime[:63]} is not mapped: {server} runs the model")
    _container(made, model, predictor)
    if not form and ("workerSpec" in predictor or (made.get("resources.accelerator.count") or 0) > 1):
        _by_vllm(made, args, f"{path}.args")
    else:
        _by_slipway(made, args, f"{path}.args")
    if image := model.text("image"):
        made.notes.append(f"{path}.image: {image[:200]} is not mapped: slipway-server runs the model")


def _storage(made: Imported, model: Fields, path: str) -> str | None:
    """The address in storageUri, or in storage where it says its bucket."""
    uri = model.text("storageUri")
    if "storage" not in model:
        return uri
    storage = model.child("storage")
    parameters = storage.child("parameters")
    kind, bucket, folder = parameters.text("type"), parameters.text("bucket"), storage.text("path") or ""
    parameters.skip("region", "endpoint_url", "anonymous")
    if key := storage.text("key"):
        made.notes.append(
            f"{path}.storage.key: {key[:100]} of the Secret storage-config: write a Secret with AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, for spec.model.secretRef, and spec.model.objectStore.endpoint"
        )
    storage.skip("schemaPath")
    if uri:
        return uri
    if "://" in folder:
        return folder
    if kind not in (None, "s3", "gs") or not bucket:
        raise Unusable(f"{path}.storage: write its bucket and path as storageUri: s3://bucket/folder")
    return f"{kind or 's3'}://{bucket}/{folder.lstrip('/')}"


def _model_id(args: list[str]) -> str | None:
    """The address of the hub that the Hugging Face runtime reads where there is no storageUri."""
    words = [part for word in args for part in word.split("=", 1)]
    for name, value in pairwise(words):
        if name.replace("_", "-") == "--model-id":
            return f"hf://{value}"
    return None


def _container(made: Imported, container: Fields, predictor: Fields) -> None:
    container.skip("name", *_PROBES)
    put_resources(made, container.child("resources"))
    put_env(made, container.children("env"))
    put_env_from(made, container.children("envFrom"))
    put_volumes(made, predictor.children("volumes"), container.children("volumeMounts"))


def _by_vllm(made: Imported, args: list[str], path: str) -> None:
    """The Hugging Face runtime hands what it does not know to vLLM."""
    put_image(made, IMAGE, path)
    words, kept = [part for word in args for part in word.split("=", 1)], list[str]()
    while words:
        word = words.pop(0)
        name = word.replace("_", "-") if word.startswith("--") else word
        if name in ("--model-name", "--served-model-name") and words:
            put_name(made, words.pop(0), path)
        elif name in ("--model-id", "--backend", "--model-dir", "--model-revision") and words:
            value = words.pop(0)
            if name == "--model-revision":
                made.put("model.revision", value, path)
        else:
            kept.append(name)
    put_args(made, kept, path)


def _by_slipway(made: Imported, args: list[str], path: str) -> None:
    words = list(args)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not equals and name.startswith("--") and words and not words[0].startswith("--"):
            value = words.pop(0)
        name = name.replace("_", "-")
        if name in ("--model-name", "--served-model-name"):
            put_name(made, value, path)
        elif name == "--max-model-len" and value.isascii() and value.isdecimal() and len(value) < 9:
            made.put("model.maxModelLen", int(value), path)
        elif name == "--dtype" and value in ("auto", "float32", "bfloat16", "float16"):
            made.put("model.dtype", value, path)
        elif name == "--model-revision" and value:
            made.put("model.revision", value, path)
        else:
            made.notes.append(f"{path}: {word[:100]} is not mapped")


def _custom(made: Imported, predictor: Fields) -> None:
    """A predictor of a container: one of vLLM has fields, any other is a custom engine."""
    first, *others = predictor.children("containers")
    for one in others:
        one.skip(*one.names())
        made.notes.append(f"{one.path}: a second container is not mapped")
    image, words = first.text("image") or "", [*first.texts("command"), *first.texts("args")]
    if "vllm" not in image:
        raise Unusable(f"{first.path}.image: {image[:100]} is no image of vLLM: it is spec.engine.type: custom")
    put_image(made, image, f"{first.path}.image")
    if words[:2] == ["vllm", "serve"]:
        words = words[2:]
    elif words[:3] == ["python3", "-m", "vllm.entrypoints.openai.api_server"]:
        words = words[3:]
    model = words.pop(0) if words and not words[0].startswith("-") and "/" in words[0] else None
    model = put_args(made, words, f"{first.path}.args") or model
    named = next((one.text("value") for one in first.children("env") if one.text("name") == "STORAGE_URI"), None)
    put_uri(made, named or (f"hf://{model}" if model and "://" not in model else model), f"{first.path}.args")
    _container(made, first, predictor)
    kept = [one for one in made.get("engine.env") or () if one["name"] != "STORAGE_URI"]
    made.drop("engine.env")
    made.put("engine.env", kept, first.at("env"))


def _workers(made: Imported, workers: Fields) -> None:
    nodes = workers.within("pipelineParallelSize", 1, 64)
    tensor = workers.within("tensorParallelSize", 1, 1024)
    for item in workers.children("containers"):
        item.skip(*item.names())
    if made.get("engine.type") != "vllm":
        raise Unusable(f"{workers.path}: several nodes are for huggingface and vllm alone")
    made.put("engine.parallelism.nodes", nodes or 2, workers.at("pipelineParallelSize"))
    made.put("engine.parallelism.pipeline", nodes or 2, workers.at("pipelineParallelSize"))
    made.put("engine.parallelism.tensor", tensor, workers.at("tensorParallelSize"))
    if tensor and not made.get("resources.accelerator"):
        made.put("resources.accelerator.count", tensor, workers.at("tensorParallelSize"))
        made.notes.append(
            f"{workers.path}: {tensor} devices a pod, as the tensor parallel size says: check spec.resources"
        )
    made.notes.append(f"{workers.path}: {nodes or 2} pods a replica, all with the resources of the predictor")


def _batcher(made: Imported, predictor: Fields) -> None:
    if "batcher" not in predictor:
        return
    batcher = predictor.child("batcher")
    size = batcher.within("maxBatchSize", 1, 65_536)
    latency = batcher.within("maxLatency", 0, 10_000)
    batcher.skip("timeout")
    if made.get("model.task") != "predict":
        made.notes.append(f"{batcher.path}: not mapped: language models have continuous batches")
        return
    made.put("batching.maxBatchSize", size, batcher.at("maxBatchSize"))
    if latency is not None:
        made.put("batching.maxQueueDelayMicroseconds", latency * 1000, batcher.at("maxLatency"))
