"""The ModelDeployment or ModelAdapter that a manifest of another tool becomes, and how it is written (pure)."""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from slipway_cli.importing.fields import MAX_REST, Fields, Unusable
from slipway_cli.importing.limits import check_limits

Json = dict[str, Any]

MAX_REPLICAS = 10_000
DEPLOYMENT, ADAPTER = "ModelDeployment", "ModelAdapter"
_API_VERSION = "slipway.dev/v1alpha1"
_NAME = {
    DEPLOYMENT: re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?"),
    ADAPTER: re.compile(r"[a-z]([-a-z0-9]{0,42}[a-z0-9])?"),
}
_NAMESPACE = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?")
_SCHEMES = ("hf://", "https://", "s3://", "gs://", "az://", "oci://", "pvc://", "file://")
_AZURE = re.compile(r"https://(?P<account>[a-z0-9]{3,24})[.]blob[.]core[.]windows[.]net/(?P<path>[^?#]+)")


@dataclass(slots=True)
class Imported:
    """`notes`: what did not map, or means something else here, each a sentence. `sources`: the other tool's field, by
    the path in the spec."""

    name: str
    namespace: str
    spec: Json = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    kind: str = DEPLOYMENT
    sources: dict[str, str] = field(default_factory=dict)
    loras: list[tuple[str, str, str]] = field(default_factory=list)  # name, address, and the field that names it
    adapter_prefix: str = ""  # what clients write before the name of an adapter

    def put(self, path: str, value: Any, source: str = "") -> None:
        """Set a field of the spec; None, and what is empty, sets nothing."""
        if value is None or value in ("", [], {}):
            return
        *parents, last = path.split(".")
        place = self.spec
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
        if source:
            self.sources[path] = source

    def get(self, path: str) -> Any:
        """A field of the spec, or None."""
        place: Any = self.spec
        for name in path.split("."):
            place = place.get(name) if isinstance(place, dict) else None
        return place

    def drop(self, path: str) -> Any:
        """Remove a field of the spec, with what becomes empty, and return it, or None."""
        parent, _, last = path.rpartition(".")
        place = self.get(parent) if parent else self.spec
        value = place.pop(last, None) if isinstance(place, dict) else None
        if parent and place == {}:
            self.drop(parent)
        return value

    def note_rest(self, *sources: Fields) -> None:
        """Name what was not read."""
        rest = [path for source in sources for path in source.rest()]
        self.notes += [f"{path}: not mapped" for path in rest[:MAX_REST]]
        if len(rest) > MAX_REST:
            self.notes.append(f"and {len(rest) - MAX_REST} more fields")

    def check(self) -> None:
        """Raise Unusable for what the API server would refuse."""
        if not _NAME[self.kind].fullmatch(self.name):
            most = 52 if self.kind == DEPLOYMENT else 44
            raise Unusable(
                f"metadata.name would be {self.name[:64]!r}: a {self.kind} has up to {most} of a-z, 0-9 and -, and "
                "starts with a letter"
            )
        if not _NAMESPACE.fullmatch(self.namespace):
            raise Unusable(f"metadata.namespace is {self.namespace[:64]!r}, which is no name of a namespace")
        check_limits(self.spec, self.sources)


def new(metadata: Fields, tool: str) -> Imported:
    """A ModelDeployment with the name and the namespace of the other object. Raises Unusable."""
    name, namespace = metadata.text("name") or "", metadata.text("namespace") or ""
    metadata.skip("labels", "annotations", "creationTimestamp", "generation", "resourceVersion", "uid", "managedFields")
    if not _NAME[DEPLOYMENT].fullmatch(name):
        raise Unusable(
            f"{metadata.at('name')} of the {tool} is {name[:64]!r}: a ModelDeployment has up to 52 of a-z, 0-9, -, and "
            "starts with a letter"
        )
    return Imported(name, namespace)


def put_uri(made: Imported, uri: str | None, path: str) -> None:
    """Set spec.model.uri. hf://ORG/MODEL:REVISION, as KServe has it, becomes uri and revision. Raises Unusable."""
    if not uri:
        raise Unusable(f"{path} is missing: a {made.kind} needs the address of a model")
    if azure := _AZURE.fullmatch(uri):
        made.put("model.objectStore.account", azure["account"], path)
        uri = f"az://{azure['path']}"
    if not uri.startswith(_SCHEMES):
        raise Unusable(f"{path} is {uri[:80]!r}: Slipway reads {', '.join(_SCHEMES)}")
    if uri.startswith("hf://"):
        uri, _, revision = uri.partition("@") if "@" in uri else _split_revision(uri)
        made.put("model.revision", revision, path)
    if uri.startswith("oci://") and not re.search(r"[:@][^/]*$", uri.removeprefix("oci://")):
        made.notes.append(f"{path}: {uri[:200]} has no tag: latest is what it means; write a version")
        uri += ":latest"
    made.put("model.uri", uri, path)


def put_name(made: Imported, name: str | None, path: str) -> None:
    """Set spec.model.name, which has no slash: of ORG/MODEL the second part, with a note."""
    short = (name or "").rpartition("/")[2]
    made.put("model.name", short, path)
    if name and short != name:
        made.notes.append(f"{path}: clients send {short}, not {name[:200]}: a name has no slash; or add a ModelRoute")


def put_replicas(made: Imported, least: int | None, most: int | None, paths: str) -> None:
    """Set spec.replicas, or spec.autoscaling where there is a range. Raises Unusable."""
    for number in (least, most):
        if number is not None and not 0 <= number <= MAX_REPLICAS:
            raise Unusable(f"{paths}: {number} is not within 0 and {MAX_REPLICAS}")
    if most and least is not None and least > most:
        raise Unusable(f"{paths}: the minimum of {least} is above the maximum of {most}")
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


def one_line(text: str) -> str:
    """A sentence in one printable line: it may quote what a stranger wrote."""
    return "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))


def sentences(made: Imported) -> list[str]:
    """The notes, to be printed."""
    return [one_line(note) for note in made.notes]


def render(made: Imported) -> str:
    """The manifest in YAML, after what did not map, as comments."""
    metadata: Json = {"name": made.name} | ({"namespace": made.namespace} if made.namespace else {})
    document = {"apiVersion": _API_VERSION, "kind": made.kind, "metadata": metadata, "spec": made.spec}
    comments = "".join(f"# {note}\n" for note in sentences(made))
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    return comments + text


def _split_revision(uri: str) -> tuple[str, str, str]:
    head, colon, revision = uri.removeprefix("hf://").rpartition(":")
    return (f"hf://{head}", colon, revision) if colon else (uri, "", "")
