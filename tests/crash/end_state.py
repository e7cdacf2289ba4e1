"""The part of the end state that must not depend on the history; pure."""

import hashlib
import json
import re
from typing import Any

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
# Posted after the action and stored nowhere else: a crash can lose one. Their contents are in the status.
_BEST_EFFORT = frozenset(
    {"ScalingReplicaSet", "TrafficWeightUpdated", "DrainStarted", "DrainCompleted", "DrainTimedOut"}
    | {"StableUnavailable", "AbortBlocked", "PodRestarted", "NotServing"}
    | {"AnalysisRunLost"}  # a kill between the writes of a run and of the status starts the analysis again
    | {"CreateFailed"}  # of the disturbance itself: the API server refused something three times in a row
)
# Counters of writes and reads: a disturbed history has more.
_COUNTERS = frozenset({"generation", "observedGeneration", "progress", "replicaSetUid"})

Object = dict[str, Any]


def end_state(obj: Object, children: dict[str, list[Object]], events: list[Object]) -> Object:
    """The status without times and counters, the children with their desired state, and the Events that were posted."""
    namespace = obj["metadata"]["namespace"]
    state = {
        "status": _without_history(_with_plain_decisions(obj.get("status") or {})),
        "children": {
            kind: sorted((_child(item, namespace) for item in items), key=lambda item: item["name"])
            for kind, items in children.items()
        },
        "events": sorted({(event["type"], event["reason"]) for event in events if event["reason"] not in _BEST_EFFORT}),
    }
    found: Object = json.loads(json.dumps(state).replace(namespace, "NAMESPACE"))
    return found


def _with_plain_decisions(status: Object) -> Object:
    """The status without the times of decisions, and without those that an analysis starts again."""
    lines = (line.partition(" ")[2] for line in status.get("decisions", ()))
    decisions = [line for line in lines if "AnalysisRun does not count" not in line]
    return {**status, "decisions": decisions}


def _without_history(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_history(item) for key, item in value.items() if key not in _COUNTERS and not _is_time(item)
        }
    if isinstance(value, list):
        return [_without_history(item) for item in value]
    return value


def _is_time(value: Any) -> bool:
    return isinstance(value, str) and _TIME.fullmatch(value) is not None


def _child(item: Object, namespace: str) -> Object:
    """Name, replicas, and a digest of all that is ours in it."""
    spec = item.get("spec") or {}
    content = [
        spec.get("template"),
        spec.get("ports"),
        item.get("data"),
        item.get("revision"),
        item["metadata"]["labels"],
    ]
    # A pod knows whose it is by namespace and name, and each run has a namespace of its own.
    text = json.dumps(content, sort_keys=True).replace(f'"{namespace}/', '"NAMESPACE/')
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return {"name": item["metadata"]["name"], "replicas": spec.get("replicas"), "content": digest}


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """Where two end states differ, a line each."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = sorted(expected.keys() | found.keys())
        return [line for key in keys for line in differences(expected.get(key), found.get(key), f"{where}.{key}")]
    return [] if expected == found else [f"{where[1:]}: {expected!r} became {found!r}"]
