"""KubeAI's Model as a ModelDeployment (pure). https://www.kubeai.org, "Kubernetes API"."""

import re

from slipway_cli.importing.fields import Fields, Unusable
from slipway_cli.importing.manifest import Imported, new, put_accelerators, put_replicas, put_uri
from slipway_cli.importing.vllm_args import IMAGE, put_args, put_image

_TASKS = {"TextGeneration": "generate", "TextEmbedding": "embed", "Reranking": "rerank"}
_PROFILE = re.compile(r"(?P<name>[-a-zA-Z0-9]{1,63}):(?P<count>[0-9]{1,2})")
_TYPES = re.compile(r"nvidia-gpu-(?P<type>[a-z0-9]+?)(-[0-9]+gb)?")


def model(obj: Fields) -> Imported:
    """The ModelDeployment of a Model. Raises Unusable: an engine has no counterpart, or a field is none."""
    made = new(obj.child("metadata"), "Model")
    spec = obj.child("spec")
    engine = spec.text("engine") or ""
    if engine in ("OLlama", "FasterWhisper"):
        raise Unusable(f"spec.engine {engine} has no counterpart: run its image as spec.engine.type: custom")
    if engine not in ("VLLM", "Infinity"):
        raise Unusable(f"spec.engine is {engine[:40]!r}: Slipway knows VLLM and Infinity")
    put_uri(made, spec.text("url"), "spec.url")
    features = spec.texts("features")
    tasks = [_TASKS[one] for one in features if one in _TASKS]
    made.notes += [f"spec.features: {one[:40]} is not mapped" for one in features if one not in _TASKS]
    if engine == "VLLM":
        put_image(made, spec.text("image") or IMAGE, "spec.image")
        put_args(made, spec.texts("args"), "spec.args")
    else:
        made.put("model.task", tasks[0] if tasks else "embed")
        made.notes.append("spec.engine: slipway-server runs the encoder in place of Infinity")
        made.notes += [f"spec.args: {one[:100]} is not mapped" for one in spec.texts("args")]
    _profile(made, spec.text("resourceProfile"))
    _scaling(made, spec)
    made.put("engine.env", [{"name": name, "value": value} for name, value in spec.labels("env").items()])
    made.put("pod.priorityClassName", spec.text("priorityClassName"))
    balancing = spec.child("loadBalancing")
    if balancing.text("strategy") == "PrefixHash":
        made.put("traffic.loadBalancing.policy", "PrefixAffinity")
        balancing.skip("prefixHash")
    if spec.text("cacheProfile"):
        made.notes.append("spec.cacheProfile: an administrator switches the cache on; then spec.model.cache: claim")
    spec.skip("owner")
    obj.skip("apiVersion", "kind", "status")
    made.note_rest(obj)
    return made


def _profile(made: Imported, profile: str | None) -> None:
    if not profile:
        return
    found = _PROFILE.fullmatch(profile)
    if not found:
        raise Unusable(f"spec.resourceProfile is {profile[:80]!r}: it is NAME:COUNT")
    if found["name"] == "cpu":
        made.put("resources.cpu", found["count"])
        return
    put_accelerators(made, found["count"], "spec.resourceProfile")
    if kind := _TYPES.fullmatch(found["name"]):
        made.put("resources.accelerator.type", kind["type"])
    made.notes.append(
        f"spec.resourceProfile: {found['name']} is KubeAI's: check spec.resources, and add CPU and memory"
    )


def _scaling(made: Imported, spec: Fields) -> None:
    least, most = spec.number("minReplicas"), spec.number("maxReplicas")
    fixed = spec.number("replicas")
    if spec.flag("autoscalingDisabled"):
        most, least = None, fixed
    put_replicas(made, 0 if least is None and most else least, most, "spec.minReplicas")
    target, delay = spec.number("targetRequests"), spec.number("scaleDownDelaySeconds")
    if "autoscaling" in made.spec:
        made.spec["autoscaling"]["metrics"] = [{"type": "InFlight", "target": str(target or 100)}]
        if delay is not None:
            made.put("autoscaling.behavior.scaleDown.stabilizationWindowSeconds", min(delay, 3600))
