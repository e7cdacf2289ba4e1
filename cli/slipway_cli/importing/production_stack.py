"""Values of vLLM's production-stack chart as ModelDeployments, one for each model, and its LoraAdapter (pure).

https://docs.vllm.ai/projects/production-stack: "Production Stack Helm Chart Values Reference", "LoRA Adapters".
"""

import re

from slipway_cli.importing.adapters import adapter
from slipway_cli.importing.fields import Fields, Unusable
from slipway_cli.importing.manifest import Imported, new, put_replicas, put_uri
from slipway_cli.importing.pods import (
    behavior,
    put_accelerators,
    put_env,
    put_placement,
    put_resources,
    put_volumes,
)
from slipway_cli.importing.vllm_args import put_args, put_image

_BOOLEANS = {"enablePrefixCaching": "enable-prefix-caching", "enableChunkedPrefill": "enable-chunked-prefill"}
_WITH_VALUE = {
    "dtype": "--dtype",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxNumSeqs": "--max-num-seqs",
    "maxLoras": "--max-loras",
    "runner": "--runner",
    "convert": "--convert",
}
_LORA_SOURCES = {"huggingface": "hf://", "s3": "s3://", "http": "https://", "https": "https://"}
_METRICS = {  # by the name of vLLM's metric in a trigger of KEDA
    "num_requests_waiting": "QueueDepth",
    "num_requests_running": "InFlight",
    "gpu_cache_usage_perc": "KVCacheUsage",
    "kv_cache_usage_perc": "KVCacheUsage",
}
_SKIPPED = ("enableEngine", "labels", "containerPort", "servicePort", "extraPorts", "imagePullPolicy", "strategy")
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe", "securityContext", "containerSecurityContext")


def values(obj: Fields) -> list[Imported]:
    """The ModelDeployments of a values file. Raises Unusable."""
    engines = obj.child("servingEngineSpec")
    models = engines.children("modelSpec")
    if not models:
        raise Unusable("servingEngineSpec.modelSpec names no model")
    common = Imported("", "")
    put_placement(common, engines)
    found, bases = list[Imported](), dict[str, Imported]()
    for one in models:
        if one.flag("enabled") is False:
            one.skip(*one.names())
            continue
        made = _model(one, common)
        found.append(made)
        for name in (made.name, one.text("modelURL") or ""):
            bases.setdefault(name, made)
    _check_names([one.name for one in found])
    engines.skip(*_SKIPPED, *_PROBES)
    rest = _rest(obj, engines)
    for item in obj.children("loraAdapters"):
        _values_adapter(item, bases)
    if found:
        rest.note_rest(obj)
        found[0].notes = [*rest.notes, *found[0].notes]
    return found


def _check_names(names: list[str]) -> None:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Unusable(f"servingEngineSpec.modelSpec has {twice!r} twice: give each model a name of its own")


def _rest(obj: Fields, engines: Fields) -> Imported:
    """What the chart has beside its models, as notes."""
    rest = Imported("", "")
    if "vllmApiKey" in engines:
        engines.skip("vllmApiKey")
        rest.notes.append("servingEngineSpec.vllmApiKey: not mapped: gateways authenticate clients (docs/tenants.md)")
    for name in ("routerSpec", "cacheserverSpec", "sharedStorage", "sharedPvcStorage", "loraController"):
        if name in obj:
            obj.skip(name)
            rest.notes.append(f"{name}: not mapped: gateways of Slipway route, and count load and prefixes themselves")
    return rest


def lora_adapter(obj: Fields) -> Imported:
    """The ModelAdapter of a LoraAdapter. Raises Unusable."""
    metadata, spec = obj.child("metadata"), obj.child("spec")
    metadata.skip(*metadata.names())
    base = spec.text("baseModel") or ""
    short = re.sub(r"[^a-z0-9]+", "-", base.rpartition("/")[2].lower()).strip("-")
    if not short:
        raise Unusable("spec.baseModel is missing")
    name, uri, path, notes = _lora_source(spec.child("adapterSource"))
    made = adapter(short, metadata.text("namespace") or "", name, uri, path)
    made.notes += notes
    made.notes.append(
        f"spec.baseModel: {base[:200]}: spec.deploymentRef has to name its ModelDeployment, which needs spec.adapters"
    )
    spec.skip("deploymentConfig", "vllmApiKey")
    obj.skip("apiVersion", "kind", "status")
    made.note_rest(obj)
    return made


def _lora_source(source: Fields) -> tuple[str, str, str, list[str]]:
    """Name, address, field, and what does not map."""
    kind, name, repository = source.text("type") or "", source.text("adapterName"), source.text("repository")
    if not name:
        raise Unusable(f"{source.at('adapterName')} is missing")
    if kind not in _LORA_SOURCES:
        raise Unusable(
            f"{source.at('type')} is {kind[:40]!r}: pods download adapters: upload the folder, and write its address"
        )
    if not repository:
        raise Unusable(f"{source.at('repository')} is missing")
    notes = []
    secret = source.child("credentialsSecretRef")
    if secret.names() and (credentials := secret.text("name")):
        notes.append(f"{secret.path}: write {credentials[:253]} into spec.adapters.secretRef of the ModelDeployment")
    secret.skip("key")
    source.skip("adapterPath", "maxAdapters", "pattern")
    uri = repository if "://" in repository else f"{_LORA_SOURCES[kind]}{repository.lstrip('/')}"
    return name, uri, source.path, notes


def _values_adapter(item: Fields, bases: dict[str, Imported]) -> None:
    base = item.text("baseModel") or ""
    if base not in bases:
        raise Unusable(f"{item.at('baseModel')} is {base[:80]!r}: servingEngineSpec.modelSpec has no such model")
    name, uri, path, notes = _lora_source(item.child("adapterSource"))
    bases[base].loras.append((name, uri, path))
    bases[base].notes += notes
    item.skip("name", "namespace", "deploymentConfig", "vllmApiKey", "labels")


def _model(spec: Fields, common: Imported) -> Imported:
    made = new(spec, "model")
    made.namespace = ""
    url = spec.text("modelURL") or ""
    put_uri(made, url if "://" in url or url.startswith("/") else f"hf://{url}" if url else "", f"{spec.path}.modelURL")
    repository, tag = spec.text("repository") or "vllm/vllm-openai", spec.quantity("tag") or "latest"
    put_image(made, f"{repository}:{tag}", f"{spec.path}.tag")
    put_replicas(made, spec.number("replicaCount"), None, f"{spec.path}.replicaCount")
    _resources(made, spec)
    _token(made, spec)
    put_env(made, spec.children("env"))
    secret = spec.child("envFromSecret")
    if name := secret.text("name"):
        made.put("engine.envFrom", [{"secretRef": {"name": name}}], secret.path)
    _config(made, spec)
    _placement(made, spec, common)
    put_volumes(made, spec.children("extraVolumes"), spec.children("extraVolumeMounts"))
    if "keda" in spec:
        _keda(made, spec.child("keda"))
    if "pvcStorage" in spec:
        made.notes.append(f"{spec.path}.pvcStorage: for a shared copy of the weights see spec.model.cache")
    spec.skip("pvcStorage", "pvcAccessMode", "pvcMatchLabels", "pvcLabels", "pvcAnnotations", "storageClass")
    if "chatTemplate" in spec:
        spec.skip("chatTemplate")
        made.notes.append(
            f"{spec.path}.chatTemplate: put it into a ConfigMap, mount it by spec.pod.volumes, and name it by "
            "--chat-template in spec.engine.args"
        )
    made.note_rest(spec)
    return made


def _resources(made: Imported, spec: Fields) -> None:
    if spec.child("resources").names():
        put_resources(made, spec.child("resources"))
        spec.skip("requestCPU", "limitCPU", "requestMemory", "limitMemory", "requestGPU", "requestGPUType")
    else:
        for ours, names in (("cpu", ("limitCPU", "requestCPU")), ("memory", ("limitMemory", "requestMemory"))):
            name = next((one for one in names if spec.quantity(one)), None)
            if name:
                made.put(f"resources.{ours}", spec.quantity(name), spec.at(name))
        resource = spec.text("requestGPUType") or "nvidia.com/gpu"
        put_accelerators(made, spec.quantity("requestGPU"), f"{spec.path}.requestGPU", resource)
    if size := spec.quantity("shmSize"):
        made.put("resources.sharedMemory", size, spec.at("shmSize"))


def _placement(made: Imported, spec: Fields, common: Imported) -> None:
    """A model's own fields, over those of all models; tolerations are both, unless tolerationsPolicy is override."""
    put_placement(made, spec)
    if secret := spec.text("imagePullSecret"):
        made.put("engine.imagePullSecrets", [{"name": secret}], spec.at("imagePullSecret"))
    for path in ("pod.runtimeClassName", "pod.schedulerName", "pod.priorityClassName"):
        if (value := common.get(path)) and not made.get(path):
            made.put(path, value, f"servingEngineSpec.{path.rpartition('.')[2]}")
            made.notes.append(f"spec.{path}: podPolicy of the chart's values has to allow it")
    policy = spec.text("tolerationsPolicy") or "append"
    if policy not in ("append", "override"):
        raise Unusable(f"{spec.at('tolerationsPolicy')} is {policy[:40]!r}: it must be append or override")
    own, shared = made.get("placement.tolerations") or [], common.get("placement.tolerations") or []
    made.put("placement.tolerations", own if policy == "override" and own else [*shared, *own])


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
        if reference := secret.text("secretName"):
            key = secret.text("secretKey") or "HF_TOKEN"
            made.put("model.secretRef", {"name": reference, "key": key}, secret.path)
        secret.skip("secretKey")


def _config(made: Imported, spec: Fields) -> None:
    config, args = spec.child("vllmConfig"), list[str]()
    for name, word in _BOOLEANS.items():
        if (on := config.flag(name)) is not None:
            args.append(f"--{word}" if on else f"--no-{word}")
    for name, word in _WITH_VALUE.items():
        if value := config.quantity(name):
            args += [word, value]
    if spec.flag("enableLoRA"):
        args.append("--enable-lora")
    if spec.flag("enableTool"):
        parser = spec.text("toolCallParser")
        args += ["--tool-call-parser", parser] if parser else []
    config.skip("v0", "v1")
    spec.skip("toolCallParser")
    put_args(made, [*args, *config.texts("extraArgs")], f"{config.path}.extraArgs")
    made.put("model.maxModelLen", config.number("maxModelLen"), config.at("maxModelLen"))
    made.put("engine.parallelism.tensor", config.number("tensorParallelSize"), config.at("tensorParallelSize"))
    ray = spec.child("raySpec")
    nodes = config.number("pipelineParallelSize")
    made.put("engine.parallelism.pipeline", nodes, config.at("pipelineParallelSize"))
    if ray.flag("enabled"):
        if (nodes or 1) > 1:
            made.put("engine.parallelism.nodes", nodes, config.at("pipelineParallelSize"))
        made.notes.append(
            f"{ray.path}: no Ray: pods of a replica are a LeaderWorkerSet, and all have the same resources"
        )
    ray.skip("headNode")


def _keda(made: Imported, keda: Fields) -> None:
    if keda.flag("enabled") is False:
        keda.skip(*keda.names())
        return
    least, most = keda.number("minReplicaCount"), keda.number("maxReplicaCount")
    made.drop("replicas")
    put_replicas(made, 1 if least is None else least, most or 100, f"{keda.path}.minReplicaCount")
    if keda.number("idleReplicaCount") == 0 and "autoscaling" in made.spec:
        made.put("autoscaling.minReplicas", 0)
        made.spec["autoscaling"]["minReplicas"] = 0
        made.put("autoscaling.idleSeconds", 300)
    if "autoscaling" not in made.spec:
        keda.skip(*keda.names())
        return
    if (seconds := keda.within("cooldownPeriod", 0, 2**31 - 1)) is not None and made.get("autoscaling.idleSeconds"):
        made.spec["autoscaling"]["idleSeconds"] = min(max(seconds, 5), 604_800)
    metrics = []
    for trigger in keda.children("triggers"):
        metadata = trigger.child("metadata")
        query = metadata.text("query") or metadata.text("metricName") or ""
        kind = next((ours for name, ours in _METRICS.items() if name in query), None)
        threshold = metadata.quantity("threshold")
        if trigger.text("type") == "prometheus" and kind and threshold:
            metrics.append({"type": kind, "target": threshold})
        else:
            made.notes.append(f"{trigger.path}: not mapped: {query[:100]}")
        metadata.skip(*metadata.names())
        trigger.skip(*trigger.names())
    if metrics:
        made.spec["autoscaling"]["metrics"] = list({one["type"]: one for one in metrics}.values())
    config = keda.child("advanced").child("horizontalPodAutoscalerConfig")
    made.put("autoscaling.behavior", behavior(config.child("behavior")), config.at("behavior"))
    config.skip("name")
    keda.skip("pollingInterval", "initialCooldownPeriod", "fallback", "cooldownPeriod", "idleReplicaCount")
    keda.child("advanced").skip("restoreToOriginalReplicaCount", "scalingModifiers")
