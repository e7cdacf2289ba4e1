"""What the API takes of each field that an import writes: a value that it would refuse is named here (pure).

The API server has the whole schema; `slipway import` calls none. tests/cli/importing/test_import.py compares the two.
"""

import re
from collections.abc import Iterator
from typing import Any

from slipway_cli.importing.fields import Unusable

_OBJECT, _KEY = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", r"[-._A-Za-z0-9]+"
_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY, _LABEL_VALUE = rf"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_WORD}", rf"({_WORD})?"
_PARSER = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_AMOUNT = r"(?=[0-9.]*[1-9])[0-9]{1,15}([.][0-9]{1,9})?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?"
_NAME = r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?"
_REPOSITORY = r"(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"
_URI = (
    r"(?!.*/[.][.](/|$))(?![a-z0-9]+://[^/?#]*@)("
    r"hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*|https://.+|file:///.*"
    r"|s3://(?![^/]*[.][.-])[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^?#]*)?|gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[^?#]*)?"
    r"|az://(?![^/]*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9](/[^?#]*)?|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/.*)?"
    rf"|oci://[A-Za-z0-9.-]+(:[0-9]{{1,5}})?{_REPOSITORY}"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}|(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?@sha256:[0-9a-f]{64}))"
)
_DURATION = r"(?=.*[0-9])([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,6}s)?"
_TEXTS: dict[str, tuple[int, str]] = {  # most characters, and the whole value
    "model.uri": (2048, _URI),
    "model.name": (128, _NAME),
    "model.revision": (256, r"(?!sha256:).+"),
    "model.secretRef.name": (253, _OBJECT),
    "model.secretRef.key": (253, _KEY),
    "model.objectStore.account": (24, r"[a-z0-9]{3,24}"),
    "model.cacheClaimName": (253, _OBJECT),
    "engine.image": (512, r"\S+"),
    "engine.args[]": (1024, r"[\s\S]*"),
    "engine.toolParser": (64, _PARSER),
    "engine.reasoningParser": (64, _PARSER),
    "engine.imagePullSecrets[].name": (253, _OBJECT),
    "engine.env[].name": (256, r"[A-Za-z_][A-Za-z0-9_]*"),
    "engine.env[].value": (4096, r"[\s\S]*"),
    "engine.env[].valueFrom.secretKeyRef.name": (253, _OBJECT),
    "engine.env[].valueFrom.secretKeyRef.key": (253, _KEY),
    "engine.env[].valueFrom.configMapKeyRef.name": (253, _OBJECT),
    "engine.env[].valueFrom.configMapKeyRef.key": (253, _KEY),
    "engine.envFrom[].prefix": (64, r"[A-Za-z_][A-Za-z0-9_]*"),
    "engine.envFrom[].secretRef.name": (253, _OBJECT),
    "engine.envFrom[].configMapRef.name": (253, _OBJECT),
    "engine.volumeMounts[].name": (50, r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"),
    "engine.volumeMounts[].mountPath": (512, r"/[-A-Za-z0-9._/]+"),
    "engine.volumeMounts[].subPath": (512, r"(?!.*[.][.])[-A-Za-z0-9._][-A-Za-z0-9._/]*"),
    "pod.volumes[].name": (50, r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"),
    "pod.volumes[].secret.secretName": (253, _OBJECT),
    "pod.volumes[].configMap.name": (253, _OBJECT),
    "pod.volumes[].persistentVolumeClaim.claimName": (253, _OBJECT),
    "pod.volumes[].emptyDir.sizeLimit": (20, r"[1-9][0-9]*(Ki|Mi|Gi|Ti)?"),
    "pod.serviceAccountName": (253, _OBJECT),
    "pod.priorityClassName": (253, _OBJECT),
    "pod.runtimeClassName": (253, _OBJECT),
    "pod.schedulerName": (253, _OBJECT),
    "pod.labels.*": (63, _LABEL_VALUE),
    "placement.nodeSelector.*": (63, _LABEL_VALUE),
    "placement.tolerations[].key": (317, rf"(?!node(-role)?[.]kubernetes[.]io/){_LABEL_KEY}"),
    "placement.tolerations[].operator": (6, r"Equal|Exists"),
    "placement.tolerations[].value": (63, _LABEL_VALUE),
    "placement.tolerations[].effect": (20, r"NoSchedule|PreferNoSchedule|NoExecute"),
    "resources.cpu": (32, _AMOUNT),
    "resources.memory": (32, _AMOUNT),
    "resources.storage": (32, _AMOUNT),
    "resources.sharedMemory": (32, _AMOUNT),
    "resources.accelerator.type": (63, _OBJECT),
    "resources.accelerator.resource": (
        253,
        rf"(?!nvidia[.]com/mig-){_OBJECT}/{_WORD}|nvidia[.]com/mig-([1-7]c[.])?[1-7]g[.][1-9][0-9]{{0,3}}gb([.][a-z]+)*",
    ),
    "autoscaling.metrics[].target": (32, r"[1-9][0-9]{0,3}%|" + _AMOUNT),
    "autoscaling.behavior.scaleUp.selectPolicy": (8, r"Max|Min|Disabled"),
    "autoscaling.behavior.scaleDown.selectPolicy": (8, r"Max|Min|Disabled"),
    "strategy.canary.steps[].pause.duration": (32, _DURATION),
    "strategy.canary.steps[].setHeaderRoute.name": (63, r".+"),
    "strategy.canary.steps[].setMirrorRoute.name": (63, r".+"),
    "deploymentRef.name": (52, r"[a-z]([-a-z0-9]*[a-z0-9])?"),
}
for _route in ("setHeaderRoute", "setMirrorRoute"):
    _match = f"strategy.canary.steps[].{_route}.match[]"
    _TEXTS[f"{_match}.headerName"] = (128, r"[A-Za-z0-9!#$%&*+.^_|~-]+")
    _TEXTS[f"{_match}.headerValue.exact"] = _TEXTS[f"{_match}.headerValue.prefix"] = (256, r"[\s\S]+")
_NUMBERS: dict[str, tuple[int, int]] = {
    "model.maxModelLen": (16, 10_000_000),
    "engine.parallelism.nodes": (1, 64),
    "engine.parallelism.tensor": (1, 1024),
    "engine.parallelism.pipeline": (1, 1024),
    "resources.accelerator.count": (1, 16),
    "adapters.maxLoaded": (1, 256),
    "adapters.maxRank": (1, 512),
    "batching.maxBatchSize": (1, 65_536),
    "batching.maxQueueDelayMicroseconds": (0, 10_000_000),
    "replicas": (0, 10_000),
    "autoscaling.minReplicas": (0, 10_000),
    "autoscaling.maxReplicas": (1, 10_000),
    "autoscaling.idleSeconds": (5, 604_800),
    "progressDeadlineSeconds": (5, 86_400),
    "drain.timeoutSeconds": (1, 86_400),
    "placement.tolerations[].tolerationSeconds": (0, 2**63 - 1),
    "strategy.canary.steps[].setWeight": (0, 100),
    "strategy.canary.steps[].setCanaryScale.replicas": (1, 10_000),
    "strategy.canary.steps[].setCanaryScale.weight": (1, 100),
    "strategy.canary.steps[].setMirrorRoute.percentage": (1, 100),
    "strategy.canary.analysis.startingStep": (0, 49),
    "strategy.canary.scaleDownDelaySeconds": (0, 86_400),
    "strategy.canary.abortScaleDownDelaySeconds": (0, 86_400),
    "strategy.blueGreen.scaleDownDelaySeconds": (0, 86_400),
    "strategy.blueGreen.abortScaleDownDelaySeconds": (0, 86_400),
    "strategy.blueGreen.autoPromotionSeconds": (0, 604_800),
    "strategy.blueGreen.previewReplicaCount": (1, 10_000),
}
for _way in ("scaleUp", "scaleDown"):
    _rules = f"autoscaling.behavior.{_way}"
    _NUMBERS[f"{_rules}.stabilizationWindowSeconds"] = (0, 3600)
    _NUMBERS[f"{_rules}.policies[].value"], _NUMBERS[f"{_rules}.policies[].periodSeconds"] = (1, 10_000), (1, 1800)
_MAPS = frozenset({"pod.labels", "pod.annotations", "placement.nodeSelector"})
_ITEMS = {  # most items of a list or an object
    **dict.fromkeys(("engine.args", "engine.env"), 64),
    **dict.fromkeys(("engine.envFrom", "engine.volumeMounts", "pod.volumes"), 16),
    **dict.fromkeys(("engine.imagePullSecrets", "strategy.canary.steps[].setHeaderRoute.match"), 8),
    **dict.fromkeys(("strategy.canary.steps[].setMirrorRoute.match", "autoscaling.behavior.scaleUp.policies"), 8),
    "autoscaling.behavior.scaleDown.policies": 8,
    "strategy.canary.steps": 50,
    **dict.fromkeys(("placement.tolerations", *_MAPS), 32),
}


def check_limits(spec: dict[str, Any], sources: dict[str, str]) -> None:
    """Raise Unusable for a value that the API refuses. `sources`: the other tool's field, by the path in the spec."""
    for path, general, value in _values(spec, "", ""):
        problem = _problem(general, value)
        if problem:
            source = f"{sources[path]}: " if path in sources else ""
            raise Unusable(f"{source}spec.{path} would be {_quoted(value)}: {problem}")


def _problem(general: str, value: Any) -> str:
    if general in _ITEMS and isinstance(value, list | dict) and len(value) > _ITEMS[general]:
        return f"it has up to {_ITEMS[general]} items"
    if general in _MAPS and (keys := [key for key in value if not re.fullmatch(_LABEL_KEY, key) or len(key) > 317]):
        return f"{keys[0][:80]!r} is no key of a label"
    if general in _TEXTS and isinstance(value, str | int):
        most, pattern = _TEXTS[general]
        if len(str(value)) > most:
            return f"it has up to {most} characters"
        if not re.fullmatch(pattern, str(value)):
            return "it is not in the form that the field takes (docs/crd.md)"
    if general in _NUMBERS and isinstance(value, int):
        least, most = _NUMBERS[general]
        if not least <= value <= most:
            return f"it is {least} to {most}"
    return ""


def _quoted(value: Any) -> str:
    return f"{len(value)} items" if isinstance(value, list | dict) else repr(str(value)[:80])


def _values(value: Any, path: str, general: str) -> Iterator[tuple[str, str, Any]]:
    """Each value with its path, and the path as the tables have it: [] for an item, * for a value of a map."""
    yield path, general, value
    if isinstance(value, dict):
        for key, one in value.items():
            name = "*" if general in _MAPS else key
            dot = "." if path else ""
            yield from _values(one, f"{path}{dot}{key}", f"{general}{dot}{name}")
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _values(one, f"{path}[{number}]", f"{general}[]")
