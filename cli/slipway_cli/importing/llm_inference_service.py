"""KServe's LLMInferenceService as a ModelDeployment with ModelAdapters, whose pods run vLLM (pure).

https://kserve.github.io/website: "LLMInferenceService Configuration Guide", "LoRA Adapters".
"""

from slipway_cli.importing.fields import Fields, Unusable
from slipway_cli.importing.manifest import Imported, new, put_name, put_replicas, put_uri
from slipway_cli.importing.pods import (
    behavior,
    put_drain,
    put_env,
    put_env_from,
    put_labels,
    put_placement,
    put_resources,
    put_volumes,
)
from slipway_cli.importing.vllm_args import put_args, put_image

_PROBES = ("ports", "imagePullPolicy", "readinessProbe", "livenessProbe", "startupProbe")
_METRICS = [{"type": "QueueDepth", "target": "5"}, {"type": "KVCacheUsage", "target": "800m"}]


def llm_inference_service(obj: Fields) -> Imported:
    """The ModelDeployment of an LLMInferenceService. Raises Unusable."""
    made = new(obj.child("metadata"), "LLMInferenceService")
    spec = obj.child("spec")
    if "prefill" in spec:
        raise Unusable("spec.prefill: disaggregated prefill has no counterpart: a ModelDeployment does both in one pod")
    model = spec.child("model")
    put_uri(made, model.text("uri"), "spec.model.uri")
    put_name(made, model.text("name"), "spec.model.name")
    _lora(made, model.child("lora"))
    put_replicas(made, spec.number("replicas"), None, "spec.replicas")
    if "scaling" in spec:
        _scaling(made, spec.child("scaling"))
    template = spec.child("template")
    _template(made, template)
    _parallelism(made, spec)
    put_placement(made, template)
    put_drain(made, template)
    put_labels(made, spec)
    spec.skip("router")
    if spec.child("storageInitializer").flag("enabled") is False:
        made.notes.append("spec.storageInitializer: the fetcher downloads here; a mounted model is pvc://claim/path")
    for name in ("baseRefs", "kvCacheOffloading"):
        if name in spec:
            spec.skip(name)
            what = "not read: write what they set into this ModelDeployment"
            made.notes.append(f"spec.{name}: {what if name == 'baseRefs' else 'not mapped: see docs/caches.md'}")
    obj.skip("apiVersion", "kind", "status")
    made.note_rest(obj)
    return made


def _lora(made: Imported, lora: Fields) -> None:
    for item in lora.children("adapters"):
        name, uri = item.text("name"), item.text("uri")
        if not name or not uri:
            raise Unusable(f"{item.path} needs name and uri")
        made.loras.append((name, uri, item.path))
    if made.loras:
        made.put("adapters.maxLoaded", lora.number("maxAdapters"), lora.at("maxAdapters"))
        made.put("adapters.maxRank", lora.number("maxRank"), lora.at("maxRank"))
    lora.skip("maxCpuAdapters")


def _scaling(made: Imported, scaling: Fields) -> None:
    most = scaling.within("maxReplicas", 1, 10_000)
    if most is None:
        raise Unusable(f"{scaling.at('maxReplicas')} is missing")
    put_replicas(made, scaling.number("minReplicas"), most, f"{scaling.path}.minReplicas")
    variant = scaling.child("wva")
    variant.skip("variantCost")
    hpa = variant.child("hpa")
    if "autoscaling" in made.spec:
        made.spec["autoscaling"]["metrics"] = [dict(one) for one in _METRICS]
        made.put("autoscaling.behavior", behavior(hpa.child("behavior")), hpa.at("behavior"))
        made.notes.append(
            f"{variant.path}: its targets are elsewhere: 5 waiting requests or 80% of the KV cache here; see "
            "spec.autoscaling"
        )
    else:
        hpa.skip("behavior")


def _template(made: Imported, template: Fields) -> None:
    containers = template.children("containers")
    main = next((one for one in containers if one.text("name") == "main"), None)
    for one in containers:
        if one is not main:
            one.skip(*one.names())
            made.notes.append(f"{one.path}: only the container main is mapped")
    if not main:
        put_image(made, "", "spec.template")
        put_volumes(made, template.children("volumes"), [])
        return
    image, command = main.text("image") or "", main.texts("command")
    if "sglang" in image:
        raise Unusable(f"{main.path}.image: {image[:100]} is SGLang: write spec.engine.type: sglang by hand")
    put_image(made, image, f"{main.path}.image")
    args = main.texts("args")
    if command[:2] == ["vllm", "serve"]:
        rest = command[2:]
        args = [*(rest[1:] if rest and not rest[0].startswith("-") else rest), *args]
    elif command:
        made.notes.append(f"{main.path}.command: {' '.join(command)[:200]} is not mapped: the operator writes it")
    put_args(made, args, f"{main.path}.args")
    put_resources(made, main.child("resources"))
    put_env(made, main.children("env"))
    put_env_from(made, main.children("envFrom"))
    put_volumes(made, template.children("volumes"), main.children("volumeMounts"))
    main.skip(*_PROBES, "securityContext")


def _parallelism(made: Imported, spec: Fields) -> None:
    sizes = spec.child("parallelism")
    tensor, pipeline = (sizes.within(name, 1, 1024) for name in ("tensor", "pipeline"))
    made.put("engine.parallelism.tensor", tensor)
    made.put("engine.parallelism.pipeline", pipeline)
    if sizes.flag("expert"):
        made.put("engine.args", [*(made.get("engine.args") or []), "--enable-expert-parallel"])
    if any((sizes.within(name, 1, 2**31 - 1) or 1) > 1 for name in ("data", "dataLocal")):
        made.notes.append(f"{sizes.path}: data parallel is not mapped: write spec.replicas for more copies")
    sizes.skip("data", "dataLocal", "dataRPCPort")
    if "worker" not in spec:
        return
    if (pipeline or 1) < 2:
        raise Unusable("spec.worker without spec.parallelism.pipeline: data parallel over nodes has no counterpart")
    spec.skip("worker")
    made.put("engine.parallelism.nodes", pipeline, sizes.at("pipeline"))
    made.notes.append(f"spec.worker: {pipeline} pods a replica, all with the resources and the nodes of spec.template")
