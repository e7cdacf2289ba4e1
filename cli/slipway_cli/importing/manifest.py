"""The ModelDeployment that a manifest of another tool becomes, and how it is written (pure)."""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from slipway_cli.importing.fields import MAX_REST, Fields, Unusable

Json = dict[str, Any]

MAX_REPLICAS = 10_000
_API_VERSION, _KIND = "slipway.dev/v1alpha1", "ModelDeployment"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
_SCHEMES = ("hf://", "https://", "s3://", "gs://", "az://", "oci://", "pvc://", "file://")
_GPU = "nvidia.com/gpu"


@dataclass(slots=True)
class Imported:
    """`notes`: what did not map, or means something else here, each a sentence."""

    name: str
    namespace: str
    spec: Json = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, path: str, value: Any) -> None:
        """Set a field of the spec; None, and what is empty, sets nothing."""
        if value is None or value in ("", [], {}):
            return
        *parents, last = path.split(".")
        place = self.spec
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value

    def note_rest(self, *sources: Fields) -> None:
        """Name what was not read."""
        rest = [path for source in sources for path in source.rest()]
        self.notes += [f"{path}: not mapped" for path in rest[:MAX_REST]]
        if len(rest) > MAX_REST:
            self.notes.append(f"and {len(rest) - MAX_REST} more fields")


def new(metadata: Fields, tool: str) -> Imported:
    """A ModelDeployment with the name and the namespace of the other object. Raises Unusable."""
    name, namespace = metadata.text("name") or "", metadata.text("namespace") or ""
    metadata.skip("labels", "annotations", "creationTimestamp", "generation", "resourceVersion", "uid", "managedFields")
    if not _NAME.fullmatch(name):
        raise Unusable(
            f"{metadata.path}.name of the {tool} is {name[:64]!r}: a ModelDeployment has up to 52 of a-z, 0-9, -"
        )
    return Imported(name, namespace)


def put_uri(made: Imported, uri: str | None, path: str) -> None:
    """Set spec.model.uri. hf://ORG/MODEL:REVISION, as KServe has it, becomes uri and revision. Raises Unusable."""
    if not uri:
        raise Unusable(f"{path} is missing: a ModelDeployment needs the address of a model")
    if not uri.startswith(_SCHEMES):
        raise Unusable(f"{path} is {uri[:80]!r}: Slipway reads {', '.join(_SCHEMES)}")
    if uri.startswith("hf://"):
        uri, _, revision = uri.partition("@") if "@" in uri else _split_revision(uri)
        made.put("model.revision", revision)
    made.put("model.uri", uri)


def put_name(made: Imported, name: str | None, path: str) -> None:
    """Set spec.model.name, which has no slash: of ORG/MODEL the second part, with a note."""
    short = (name or "").rpartition("/")[2]
    made.put("model.name", short)
    if name and short != name:
        made.notes.append(f"{path}: clients send {short}, not {name[:200]}: a name has no slash; or add a ModelRoute")


def put_replicas(made: Imported, least: int | None, most: int | None, paths: str) -> None:
    """Set spec.replicas, or spec.autoscaling where there is a range. Raises Unusable."""
    for number in (least, most):
        if number is not None and not 0 <= number <= MAX_REPLICAS:
            raise Unusable(f"{paths}: {number} is not within 0 and {MAX_REPLICAS}")
    if most and (least is None or most > least):
        made.put("autoscaling.minReplicas", least if least is not None else 1)
        made.spec["autoscaling"]["maxReplicas"] = most
        made.spec["autoscaling"]["metrics"] = [{"type": "InFlight", "target": "16"}]
        if least == 0:
            made.put("autoscaling.idleSeconds", 300)
            made.notes.append(f"{paths}: to zero after spec.autoscaling.idleSeconds: 300; requests then wait for a pod")
        return
    if least is not None:
        made.spec["replicas"] = least


def put_resources(made: Imported, resources: Fields) -> None:
    """Set spec.resources from limits, or requests where there are none."""
    limits, requests = resources.child("limits"), resources.child("requests")
    for name in dict.fromkeys([*limits.names(), *requests.names()]):
        value = limits.quantity(name) or requests.quantity(name)
        requests.skip(name)
        if name in ("cpu", "memory"):
            made.put(f"resources.{name}", value)
        elif name == "ephemeral-storage":
            made.put("resources.storage", value)
        elif "/" in name:
            put_accelerators(made, value, f"{resources.path}.limits.{name}", name)
        else:
            made.notes.append(f"{resources.path}.limits.{name}: not mapped")


def put_accelerators(made: Imported, count: str | int | None, path: str, resource: str = _GPU) -> None:
    """Set spec.resources.accelerator. Raises Unusable for a number that is none."""
    if count is None or str(count) == "0":
        return
    if not re.fullmatch(r"[1-9][0-9]?", str(count)):
        raise Unusable(f"{path} is {str(count)[:20]!r}: it must be 1 to 16 devices")
    made.put("resources.accelerator.count", int(count))
    if resource != _GPU:
        made.put("resources.accelerator.resource", resource)


def put_env(made: Imported, env: list[Fields]) -> None:
    """Set spec.engine.env, and the Secret of the hub's token as spec.model.secretRef."""
    kept = []
    for item in env:
        name, value, source = item.text("name") or "", item.quantity("value"), item.child("valueFrom")
        secret = source.child("secretKeyRef")
        reference = {"name": secret.text("name"), "key": secret.text("key")} if secret.names() else None
        secret.skip("optional")
        if name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            if reference:
                made.put("model.secretRef", reference)
            else:
                made.notes.append(f"{item.path}: a token in a manifest: put it into a Secret, for spec.model.secretRef")
        elif reference:
            kept.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
        elif value is not None:
            kept.append({"name": name, "value": value})
        else:
            made.notes.append(f"{item.path}: {name[:64]} has a source that is not mapped")
    made.put("engine.env", kept)


def put_placement(made: Imported, pod: Fields) -> None:
    """Set spec.placement, and what an administrator has to allow in spec.pod."""
    made.put("placement.nodeSelector", pod.labels("nodeSelector"))
    tolerations = []
    for item in pod.children("tolerations"):
        one: Json = {name: item.text(name) for name in ("key", "operator", "value", "effect") if name in item}
        if (seconds := item.number("tolerationSeconds")) is not None:
            one["tolerationSeconds"] = seconds
        if "key" in one:
            tolerations.append(one)
        else:
            made.notes.append(f"{item.path}: a toleration of all taints is not possible: name the key")
    made.put("placement.tolerations", tolerations)
    for name in ("serviceAccountName", "priorityClassName", "runtimeClassName", "schedulerName"):
        if value := pod.text(name):
            made.put(f"pod.{name}", value)
            made.notes.append(f"spec.pod.{name}: podPolicy of the chart's values has to allow it")


def one_line(text: str) -> str:
    """A sentence in one printable line: it may quote what a stranger wrote."""
    return "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))


def sentences(made: Imported) -> list[str]:
    """The notes, to be printed."""
    return [one_line(note) for note in made.notes]


def render(made: Imported) -> str:
    """The manifest in YAML, after what did not map, as comments."""
    metadata: Json = {"name": made.name} | ({"namespace": made.namespace} if made.namespace else {})
    document = {"apiVersion": _API_VERSION, "kind": _KIND, "metadata": metadata, "spec": made.spec}
    comments = "".join(f"# {note}\n" for note in sentences(made))
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    return comments + text


def _split_revision(uri: str) -> tuple[str, str, str]:
    head, colon, revision = uri.removeprefix("hf://").rpartition(":")
    return (f"hf://{head}", colon, revision) if colon else (uri, "", "")
