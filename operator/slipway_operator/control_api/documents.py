"""What callers get: documents of ModelDeployments (pure)."""

from typing import Any

from slipway_operator.api.objects import Object

Document = dict[str, Any]


def deployment(obj: Object) -> Document:
    """The document of one ModelDeployment. What the operator has not written yet is null, or empty."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    model = spec.get("model") or {}
    return {
        "object": "deployment",
        "model_name": metadata["name"],
        "namespace": metadata.get("namespace"),
        "created_at": metadata.get("creationTimestamp"),
        "uri": model.get("uri"),
        "version": model.get("version"),
        "traffic_percent": canary_of(obj).get("trafficPercent"),
        "traffic": traffic(obj),
        "resources": {"gpu": _accelerators(spec), "replicas": spec.get("replicas", 1)},
        "phase": status.get("phase"),
        "message": status.get("message"),
        "model": status.get("model"),
        "endpoint": status.get("endpoint"),
        "revisions": [
            {name: item.get(name) for name in ("revision", "version", "role", "weight", "replicas", "ready")}
            for item in revisions(obj)
        ],
    }


def page(items: list[Object], more: str) -> Document:
    """One page of a list. `more`: where the next one begins; "" after the last one."""
    return {
        "object": "list",
        "data": [deployment(item) for item in items],
        "has_more": bool(more),
        "next_after": more or None,
    }


def traffic(obj: Object) -> dict[str, int]:
    """Percent of new requests by version, of what gets requests or is under test."""
    names = versions(obj)
    weights = {item.get("revision"): int(item.get("weight") or 0) for item in revisions(obj)}
    return {name: weights.get(revision, 0) for name, revision in names.items()}


def versions(obj: Object) -> dict[str, str]:
    """The revisions that traffic can go to, stable first, by version: by their hash where a version is not unique."""
    status = obj.get("status") or {}
    labels = {str(item.get("revision")): item.get("version") for item in revisions(obj)}
    live = [str(revision) for role in ("stableRevision", "canaryRevision") if (revision := status.get(role))]
    named = [labels.get(revision) or revision for revision in live]
    return {revision if named.count(name) > 1 else name: revision for name, revision in zip(named, live, strict=True)}


def revisions(obj: Object) -> list[Object]:
    """The revisions in the status that have pods, without baselines."""
    found = (obj.get("status") or {}).get("revisions") or ()
    return [item for item in found if item.get("role") in ("stable", "canary", "old")]


def canary_of(obj: Object) -> Object:
    """spec.strategy.canary; empty without one."""
    return ((obj.get("spec") or {}).get("strategy") or {}).get("canary") or {}


def is_observed(obj: Object) -> bool:
    """Whether the status is of the spec that the object has now."""
    observed = (obj.get("status") or {}).get("observedGeneration", 0)
    return bool(observed >= obj["metadata"].get("generation", 0))


def is_blue_green(obj: Object) -> bool:
    return bool(((obj.get("spec") or {}).get("strategy") or {}).get("blueGreen"))


def _accelerators(spec: Object) -> int:
    return int(((spec.get("resources") or {}).get("accelerator") or {}).get("count") or 0)
