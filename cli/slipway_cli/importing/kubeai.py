"""KubeAI's Model as a ModelDeployment with ModelAdapters (pure). https://www.kubeai.org, "Kubernetes API"."""

import re

from slipway_cli.importing.fields import Fields, Unusable
from slipway_cli.importing.manifest import Imported, new, put_replicas, put_uri
from slipway_cli.importing.pods import put_accelerators, put_env_from
from slipway_cli.importing.vllm_args import IMAGE, put_args, put_image

_TASKS = {"TextGeneration": "generate", "TextEmbedding": "embed", "Reranking": "rerank"}
_PROFILE = re.compile(r"(?P<name>[-a-zA-Z0-9]{1,63}):(?P<count>[0-9]{1,2})", re.ASCII)
_TYPES = re.compile(r"nvidia-gpu-(?P<type>[a-z0-9]+?)(-[0-9]+gb)?")
_SECRET = re.compile(
    r"(?i)(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|SECRET_KEY|PRIVATE_KEY|CREDENTIALS?)$"
)


def model(obj: Fields) -> Imported:
    """The ModelDeployment of a Model. Raises Unusable: an engine has no counterpart, or a field is none."""
    made = new(obj.child("metadata"), "Model")
    spec = obj.child("spec")
    engine = _engine_name(spec)
    put_uri(made, _url(spec.text("url")), "spec.url")
    _engine(made, spec, engine)
    _profile(made, spec.text("resourceProfile"))
    _scaling(made, spec)
    _env(made, spec)
    made.put("pod.priorityClassName", spec.text("priorityClassName"), "spec.priorityClassName")
    if "pod" in made.spec:
        made.notes.append("spec.pod.priorityClassName: podPolicy of the chart's values has to allow it")
    balancing = spec.child("loadBalancing")
    if balancing.text("strategy") == "PrefixHash":
        made.put("traffic.loadBalancing.policy", "PrefixAffinity")
    balancing.skip("prefixHash")
    if spec.text("cacheProfile"):
        made.notes.append("spec.cacheProfile: an administrator switches the cache on; then spec.model.cache: claim")
    _adapters(made, spec)
    _files(made, spec)
    for patch in spec.children("jsonPatches"):
        patch.skip(*patch.names())
        made.notes.append(f"{patch.path}: not mapped: write what it sets into spec.engine and spec.pod")
    spec.skip("owner")
    obj.skip("apiVersion", "kind", "status")
    made.note_rest(obj)
    return made


def _engine_name(spec: Fields) -> str:
    engine = spec.text("engine") or ""
    if engine in ("OLlama", "FasterWhisper"):
        raise Unusable(f"spec.engine {engine} has no counterpart: run its image as spec.engine.type: custom")
    if engine not in ("VLLM", "Infinity"):
        raise Unusable(f"spec.engine is {engine[:40]!r}: Slipway knows VLLM and Infinity")
    return engine


def _engine(made: Imported, spec: Fields, engine: str) -> None:
    features = spec.texts("features")
    tasks = [_TASKS[one] for one in features if one in _TASKS]
    made.notes += [f"spec.features: {one[:40]} is not mapped" for one in features if one not in _TASKS]
    if engine == "VLLM":
        put_image(made, spec.text("image") or IMAGE, "spec.image")
        put_args(made, spec.texts("args"), "spec.args")
        if tasks == ["embed"]:
            made.put("model.task", "embed")
        elif "rerank" in tasks:
            raise Unusable("spec.features: Reranking by VLLM has no counterpart: write engine: Infinity")
    else:
        made.put("model.task", tasks[0] if tasks else "embed")
        made.notes.append("spec.engine: slipway-server runs the encoder in place of Infinity")
        made.notes += [f"spec.args: {one[:100]} is not mapped" for one in spec.texts("args")]


def _url(url: str | None) -> str | None:
    """Without the parameters that KubeAI reads, such as ?model=NAME of a claim."""
    if url and url.startswith(("pvc://", "s3://", "gs://")) and "?" in url:
        raise Unusable(f"spec.url is {url[:80]!r}: parameters after ? are of KubeAI: write the address alone")
    return url


def _env(made: Imported, spec: Fields) -> None:
    kept = []
    for name, value in spec.labels("env").items():
        if name == "VLLM_API_KEY" or _SECRET.search(name) or re.match(r"[a-z0-9+]+://[^/?#@]*:[^/?#@]*@", value):
            made.notes.append(
                f"spec.env.{name[:64]}: looks like a secret: put it into a Secret, with spec.engine.envFrom"
            )
        else:
            kept.append({"name": name, "value": value})
    made.put("engine.env", kept, "spec.env")
    put_env_from(made, spec.children("envFrom"))


def _adapters(made: Imported, spec: Fields) -> None:
    """Clients of KubeAI write MODEL_ADAPTER."""
    for item in spec.children("adapters"):
        name, url = item.text("name"), item.text("url")
        if not name or not url:
            raise Unusable(f"{item.path} needs name and url")
        made.loras.append((name, url, item.path))
    made.adapter_prefix = f"{made.name}_"


def _files(made: Imported, spec: Fields) -> None:
    """KubeAI writes a ConfigMap by itself; here it is one of yours."""
    files = spec.children("files")
    mounts = []
    for number, item in enumerate(files):
        path = item.text("path") or ""
        item.skip("content")
        if not re.fullmatch(r"/[-A-Za-z0-9._/]+", path) or ".." in path or "//" in path or path.endswith("/"):
            raise Unusable(f"{item.at('path')} is {path[:80]!r}: it must be the plain path of a file")
        mounts.append({"name": "files", "mountPath": path, "subPath": f"file-{number}", "readOnly": True})
        made.notes.append(
            f"{item.path}: put the content of {path[:200]} as file-{number} into the ConfigMap {made.name}-files"
        )
    if mounts:
        made.put("pod.volumes", [{"name": "files", "configMap": {"name": f"{made.name}-files"}}])
        made.put("engine.volumeMounts", list({one["mountPath"]: one for one in mounts}.values()), "spec.files")


def _profile(made: Imported, profile: str | None) -> None:
    if not profile:
        return
    found = _PROFILE.fullmatch(profile)
    if not found:
        raise Unusable(f"spec.resourceProfile is {profile[:80]!r}: it is NAME:COUNT")
    if found["name"] == "cpu":
        made.put("resources.cpu", found["count"], "spec.resourceProfile")
        return
    if "tpu" in found["name"] or found["name"].startswith(("amd-", "google-", "gaudi", "intel-")):
        raise Unusable(f"spec.resourceProfile: {found['name']} is no device of NVIDIA: write spec.resources by hand")
    put_accelerators(made, str(int(found["count"])), "spec.resourceProfile")
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
    elif most is None and not least:
        made.notes.append("spec.maxReplicas: KubeAI has no limit without it: one pod here; write spec.autoscaling")
        least = 1
    put_replicas(made, 0 if least is None and most else least, most, "spec.minReplicas")
    target, delay = spec.within("targetRequests", 1, 2**31 - 1), spec.within("scaleDownDelaySeconds", 0, 2**31 - 1)
    if "autoscaling" in made.spec:
        made.spec["autoscaling"]["metrics"] = [{"type": "InFlight", "target": str(target or 100)}]
        if delay is not None:
            made.put("autoscaling.behavior.scaleDown.stabilizationWindowSeconds", min(delay, 3600))
            if delay > 3600:
                made.notes.append(f"spec.scaleDownDelaySeconds: {delay} is above the most of a window: 3600")
