"""A pod of another tool in the fields of a ModelDeployment: resources, variables, files, nodes (pure)."""

import re
from typing import Any

from slipway_cli.importing.fields import Fields, Unusable
from slipway_cli.importing.manifest import Imported

Json = dict[str, Any]

GPU, SHARED_MEMORY = "nvidia.com/gpu", "/dev/shm"
_TOKENS = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN"})
_SECRET = re.compile(
    r"(?i)(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|SECRET_KEY|PRIVATE_KEY|CREDENTIALS?)$"
)
_CREDENTIALS = re.compile(r"[a-z0-9+]+://[^/?#@]*:[^/?#@]*@")
_TAKEN = frozenset({"VLLM_API_KEY", "SLIPWAY_PIN_FILE", "SLIPWAY_DEPLOYMENT"})
_ZERO = re.compile(r"0+([.]0*)?[a-zA-Z]*")
_SYSTEM = re.compile(
    r"/(tmp|dev|proc|sys|bin|lib|lib64|usr|etc|run|var|var/run|mnt)|"
    r"/(dev|proc|sys|mnt/models|mnt/pvc|etc/slipway|run/secrets|var/run/secrets)(/.*)?"
)
_PLAIN = frozenset({"metadata", "restartPolicy", "dnsPolicy", "hostIPC", "automountServiceAccountToken"})


def put_resources(made: Imported, resources: Fields) -> None:
    """Set spec.resources from limits, or requests where there are none."""
    limits, requests = resources.child("limits"), resources.child("requests")
    for name in dict.fromkeys([*limits.names(), *requests.names()]):
        value = limits.quantity(name) or requests.quantity(name)
        requests.skip(name)
        path = f"{(limits if name in limits else requests).path}.{name}"
        if value is None or _ZERO.fullmatch(value):
            continue
        if name in ("cpu", "memory"):
            made.put(f"resources.{name}", value, path)
        elif name == "ephemeral-storage":
            made.put("resources.storage", value, path)
        elif name.startswith("rdma/"):
            made.notes.append(f"{path}: not mapped: a ModelDeployment has one kind of devices")
        elif "/" in name:
            put_accelerators(made, value, path, name)
        else:
            made.notes.append(f"{path}: not mapped")


def put_accelerators(made: Imported, count: str | int | None, path: str, resource: str = GPU) -> None:
    """Set spec.resources.accelerator. Raises Unusable for a number that is none."""
    if count is None or str(count) == "0":
        return
    if not re.fullmatch(r"[1-9]|1[0-6]", str(count)):
        raise Unusable(f"{path} is {str(count)[:20]!r}: it must be 1 to 16 devices")
    if made.get("resources.accelerator"):
        raise Unusable(f"{path}: a ModelDeployment has one kind of devices: remove one of them")
    made.put("resources.accelerator.count", int(count), path)
    if resource != GPU:
        made.put("resources.accelerator.resource", resource, path)


def put_env(made: Imported, env: list[Fields]) -> None:
    """Set spec.engine.env, and the Secret of the hub's token as spec.model.secretRef. A later variable of the same name
    wins, as in Kubernetes."""
    kept: dict[str, Json] = {one["name"]: one for one in made.get("engine.env") or ()}
    for item in env:
        name, value, source = item.text("name") or "", item.quantity("value"), item.child("valueFrom")
        references = {}
        for kind in ("secretKeyRef", "configMapKeyRef"):
            reference = source.child(kind)
            reference.skip("optional")
            if reference.names():
                references[kind] = {key: _needed(reference, key) for key in ("name", "key")}
        if name in _TAKEN:
            made.notes.append(f"{item.path}: {name} is not mapped: {_taken(name)}")
        elif name in _TOKENS and "secretKeyRef" in references:
            made.put("model.secretRef", references["secretKeyRef"], item.path)
        elif references:
            kept[name] = {"name": name, "valueFrom": references}
        elif value is None:
            made.notes.append(f"{item.path}: {name[:64]} has a source that is not mapped")
        elif name in _TOKENS:
            made.notes.append(f"{item.path}: a token in a manifest: put it into a Secret, for spec.model.secretRef")
        elif _SECRET.search(name) or _CREDENTIALS.match(value):
            made.notes.append(f"{item.path}: {name[:64]} looks like a secret: put it into a Secret, with secretKeyRef")
        else:
            kept[name] = {"name": name, "value": value}
    made.put("engine.env", list(kept.values()), env[0].path.rpartition("[")[0] if env else "")


def put_env_from(made: Imported, sources: list[Fields]) -> None:
    """Set spec.engine.envFrom."""
    kept = []
    for item in sources:
        one: Json = {"prefix": item.text("prefix")} if "prefix" in item else {}
        for kind in ("secretRef", "configMapRef"):
            reference = item.child(kind)
            reference.skip("optional")
            if reference.names():
                one[kind] = {"name": _needed(reference, "name")}
        if ("secretRef" in one) == ("configMapRef" in one):
            raise Unusable(f"{item.path} has neither secretRef nor configMapRef, or both")
        kept.append(one)
    made.put("engine.envFrom", kept, sources[0].path.rpartition("[")[0] if sources else "")


def put_placement(made: Imported, pod: Fields) -> None:
    """Set spec.placement, and what an administrator has to allow in spec.pod."""
    made.put("placement.nodeSelector", pod.labels("nodeSelector"), pod.at("nodeSelector"))
    tolerations = [one for item in pod.children("tolerations") if (one := _toleration(made, item))]
    made.put("placement.tolerations", tolerations, pod.at("tolerations"))
    for name in ("serviceAccountName", "priorityClassName", "runtimeClassName", "schedulerName"):
        if value := pod.text(name):
            made.put(f"pod.{name}", value, pod.at(name))
            made.notes.append(f"spec.pod.{name}: podPolicy of the chart's values has to allow it")
    secrets = dict.fromkeys(_needed(one, "name") for one in pod.children("imagePullSecrets"))
    made.put("engine.imagePullSecrets", [{"name": one} for one in secrets], pod.at("imagePullSecrets"))
    pod.skip(*_PLAIN)


def put_drain(made: Imported, pod: Fields) -> None:
    """Set spec.drain.timeoutSeconds from the time that a pod has to end."""
    if (seconds := pod.within("terminationGracePeriodSeconds", 0, 2**31 - 1)) is not None:
        if 1 <= seconds <= 86_400:
            made.put("drain.timeoutSeconds", seconds)
        else:
            made.notes.append(f"{pod.at('terminationGracePeriodSeconds')}: {seconds} is not mapped: 1 to 86400")


def put_labels(made: Imported, workload: Fields) -> None:
    """Set spec.pod.labels, without those of the operator."""
    labels = workload.labels("labels")
    ours = {key for key in labels if re.match(r"([a-z0-9-]+[.])*slipway[.]dev/|app[.]kubernetes[.]io/", key)}
    kept = {key: value for key, value in labels.items() if key not in ours}
    made.notes += [f"{workload.at('labels')}.{key}: not mapped: the operator sets such labels" for key in sorted(ours)]
    if kept:
        made.put("pod.labels", kept, workload.at("labels"))
        made.notes.append("spec.pod.labels: podPolicy of the chart's values has to allow them")


def put_volumes(made: Imported, volumes: list[Fields], mounts: list[Fields]) -> None:
    """Set spec.pod.volumes and spec.engine.volumeMounts from those that a ModelDeployment can have."""
    by_name = {}
    for item in volumes:
        name = item.text("name") or ""
        if volume := _volume(made, item, name):
            by_name[name] = volume
    kept: dict[str, Json] = {}
    for mount in mounts:
        name, path, sub_path = mount.text("name") or "", mount.text("mountPath") or "", mount.text("subPath")
        read_only = mount.flag("readOnly")
        if path.rstrip("/") == SHARED_MEMORY and (size := by_name.get(name, {}).get("emptyDir", {}).get("sizeLimit")):
            made.put("resources.sharedMemory", size, mount.path)
        elif name not in by_name:
            made.notes.append(f"{mount.path}: volume {name[:63]} is not mapped, and so its mount is not")
        elif _SYSTEM.fullmatch(path.rstrip("/")):
            made.notes.append(f"{mount.path}: {path[:200]} is a folder of the system or the operator: not mapped")
        else:
            one: Json = {"name": name, "mountPath": path.rstrip("/")}
            kept[one["mountPath"]] = (
                one | ({"subPath": sub_path} if sub_path else {}) | ({"readOnly": True} if read_only else {})
            )
    made.put("engine.volumeMounts", list(kept.values()), mounts[0].path.rpartition("[")[0] if mounts else "")
    used = [by_name[name] for name in dict.fromkeys(one["name"] for one in kept.values())]
    made.put("pod.volumes", used, volumes[0].path.rpartition("[")[0] if volumes else "")


def behavior(rules: Fields) -> Json:
    """The behavior of a HorizontalPodAutoscaler. Raises Unusable."""
    made: Json = {}
    for way in ("scaleUp", "scaleDown"):
        rule = rules.child(way)
        one: Json = {
            "selectPolicy": rule.text("selectPolicy"),
            "stabilizationWindowSeconds": rule.within("stabilizationWindowSeconds", 0, 3600),
            "policies": [
                {
                    "type": _choice(item, "type", ("Pods", "Percent")),
                    "value": item.within("value", 1, 10_000) or 1,
                    "periodSeconds": item.within("periodSeconds", 1, 1800) or 15,
                }
                for item in rule.children("policies")
            ],
        }
        if kept := {name: value for name, value in one.items() if value not in (None, [])}:
            made[way] = kept
    return made


def _taken(name: str) -> str:
    return "gateways have no key of the pods" if name == "VLLM_API_KEY" else "the operator sets it"


def _needed(item: Fields, name: str) -> str:
    value = item.text(name)
    if not value:
        raise Unusable(f"{item.at(name)} is missing")
    return value


def _choice(item: Fields, name: str, choices: tuple[str, ...]) -> str:
    value = _needed(item, name)
    if value not in choices:
        raise Unusable(f"{item.at(name)} is {value[:40]!r}: it must be {' or '.join(choices)}")
    return value


def _toleration(made: Imported, item: Fields) -> Json | None:
    one: Json = {name: item.text(name) for name in ("key", "operator", "value", "effect") if item.text(name)}
    seconds = item.number("tolerationSeconds")
    if "key" not in one:
        made.notes.append(f"{item.path}: a toleration of all taints is not possible: name the key")
        return None
    if re.match(r"node(-role)?[.]kubernetes[.]io/", one["key"]):
        made.notes.append(f"{item.path}: {one['key'][:80]} is a taint of Kubernetes: not tolerated")
        return None
    if one.get("operator") == "Exists" and "value" in one:
        raise Unusable(f"{item.path} has operator Exists and a value: remove one of them")
    if seconds is not None and one.get("effect") == "NoExecute":
        one["tolerationSeconds"] = seconds
    elif seconds is not None:
        made.notes.append(f"{item.at('tolerationSeconds')}: not mapped: it goes with effect NoExecute")
    return one


def _volume(made: Imported, item: Fields, name: str) -> Json | None:
    for kind, key in (("secret", "secretName"), ("configMap", "name"), ("persistentVolumeClaim", "claimName")):
        if kind in item:
            source = item.child(kind)
            volume: Json = {key: _needed(source, key)}
            if kind == "persistentVolumeClaim" and source.flag("readOnly"):
                volume["readOnly"] = True
            source.skip("optional")
            return {"name": name, kind: volume}
    if "emptyDir" in item:
        directory = item.child("emptyDir")
        medium, size = directory.text("medium"), directory.quantity("sizeLimit")
        if not size:
            made.notes.append(f"{item.path}: an emptyDir without sizeLimit is not mapped: /tmp is there to write")
            return None
        return {"name": name, "emptyDir": {"sizeLimit": size} | ({"medium": "Memory"} if medium == "Memory" else {})}
    return None
