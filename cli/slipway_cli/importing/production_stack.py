"""Values of vLLM's production-stack chart as ModelDeployments, one for each model (pure).

https://docs.vllm.ai/projects/production-stack: "Production Stack Helm Chart Values Reference".
"""

from slipway_cli.importing.fields import Fields, Unusable
from slipway_cli.importing.manifest import (
    Imported,
    new,
    put_accelerators,
    put_env,
    put_placement,
    put_replicas,
    put_uri,
)
from slipway_cli.importing.vllm_args import put_args, put_image

_BOOLEANS = {"enablePrefixCaching": "enable-prefix-caching", "enableChunkedPrefill": "enable-chunked-prefill"}
_WITH_VALUE = {"gpuMemoryUtilization": "--gpu-memory-utilization", "maxNumSeqs": "--max-num-seqs"}


def values(obj: Fields) -> list[Imported]:
    """The ModelDeployments of a values file. Raises Unusable."""
    engines = obj.child("servingEngineSpec")
    models = engines.children("modelSpec")
    if not models:
        raise Unusable("servingEngineSpec.modelSpec names no model")
    runtime = engines.text("runtimeClassName")
    found = [_model(one, runtime) for one in models if one.flag("enabled") is not False]
    engines.skip("enableEngine", "labels", "containerPort", "servicePort")
    rest = Imported("", "")
    for name in ("routerSpec", "cacheserverSpec", "sharedStorage", "loraController", "loraAdapters"):
        if name in obj:
            obj.skip(name)
            rest.notes.append(f"{name}: not mapped: gateways of Slipway route, and count load and prefixes themselves")
    rest.note_rest(*(one for one in (obj,) if found))
    if found:
        found[0].notes = [*rest.notes, *found[0].notes]
    return found


def _model(spec: Fields, runtime: str | None) -> Imported:
    made = new(spec, "model")
    made.namespace = ""
    url = spec.text("modelURL") or ""
    put_uri(made, url if "://" in url or url.startswith("/") else f"hf://{url}" if url else "", f"{spec.path}.modelURL")
    repository, tag = spec.text("repository") or "vllm/vllm-openai", spec.text("tag") or "latest"
    put_image(made, f"{repository}:{tag}", f"{spec.path}.tag")
    put_replicas(made, spec.number("replicaCount"), None, f"{spec.path}.replicaCount")
    for ours, names in (("cpu", ("limitCPU", "requestCPU")), ("memory", ("limitMemory", "requestMemory"))):
        amounts = [spec.quantity(name) for name in names]
        made.put(f"resources.{ours}", next((one for one in amounts if one), None))
    resource = spec.text("requestGPUType") or "nvidia.com/gpu"
    put_accelerators(made, spec.number("requestGPU"), f"{spec.path}.requestGPU", resource)
    _token(made, spec)
    put_env(made, spec.children("env"))
    _config(made, spec.child("vllmConfig"))
    put_placement(made, spec)
    if runtime and "runtimeClassName" not in made.spec.get("pod", {}):
        made.put("pod.runtimeClassName", runtime)
        made.notes.append("spec.pod.runtimeClassName: podPolicy of the chart's values has to allow it")
    if "pvcStorage" in spec:
        made.notes.append(f"{spec.path}.pvcStorage: for a shared copy of the weights see spec.model.cache")
        spec.skip("pvcStorage", "pvcAccessMode", "pvcMatchLabels", "storageClass")
    made.note_rest(spec)
    return made


def _token(made: Imported, spec: Fields) -> None:
    for name in ("hf_token", "hfToken"):
        if name not in spec:
            continue
        try:
            secret = spec.child(name)
        except Unusable:
            made.notes.append(
                f"{spec.path}.{name}: a token in a values file: put it into a Secret, for spec.model.secretRef"
            )
            continue
        reference = {"name": secret.text("secretName"), "key": secret.text("secretKey") or "HF_TOKEN"}
        made.put("model.secretRef", reference)


def _config(made: Imported, config: Fields) -> None:
    made.put("model.maxModelLen", config.number("maxModelLen"))
    made.put("engine.parallelism.tensor", config.number("tensorParallelSize"))
    if (dtype := config.text("dtype")) in ("auto", "float32", "bfloat16", "float16"):
        made.put("model.dtype", dtype)
    elif dtype:
        made.notes.append(f"{config.path}.dtype: {dtype[:20]} is not mapped")
    args = []
    for name, word in _BOOLEANS.items():
        if (on := config.flag(name)) is not None:
            args.append(f"--{word}" if on else f"--no-{word}")
    for name, word in _WITH_VALUE.items():
        if value := config.quantity(name):
            args += [word, value]
    config.skip("v1")
    put_args(made, [*args, *config.texts("extraArgs")], f"{config.path}.extraArgs")
