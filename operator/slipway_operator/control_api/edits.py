"""Which manifest or patch a request becomes, and what forbids it (pure)."""

from typing import Any

from slipway_operator.api.objects import Object
from slipway_operator.control_api.bodies import DeploymentBody, Split
from slipway_operator.control_api.documents import canary_of, is_blue_green, is_observed, versions
from slipway_operator.model import labels
from slipway_process.serving.errors import HttpError, invalid

FIELD_MANAGER = "slipway-control-api"
MOST_STEPS, MOST_VERSIONS = 10, 4  # of those that a message names

# Where a change of these would be undone: a manifest that is applied has the field. An update by kubectl edit,
# kubectl patch or `slipway` is an act like ours. Argo CD and Flux by their managers, as they may use updates.
_APPLIES = "Apply"
_APPLIERS = frozenset(
    {
        "kubectl-client-side-apply",
        "argocd-controller",
        "argocd-application-controller",
        "kustomize-controller",
        "helm-controller",
        "helm",
        "Helm",
        "fluxcd",
    }
)
_TRAFFIC = ("strategy", "canary", "trafficPercent")


def manifest(body: DeploymentBody, namespace: str) -> Object:
    """The new ModelDeployment. Raises HttpError: 400 without a uri."""
    if body.uri is None:
        raise invalid(
            f"there is no deployment {body.model_name} in {namespace}; to create one, add uri, for example "
            "hf://org/model",
            "uri",
            "missing_required_parameter",
        )
    return {
        "apiVersion": labels.API_VERSION,
        "kind": labels.KIND,
        "metadata": {"name": body.model_name, "namespace": namespace},
        "spec": _nested({path: value for path, value in _changes(body).items() if value is not None}),
    }


def patch(body: DeploymentBody, obj: Object) -> Object | None:
    """The merge patch of an existing ModelDeployment; None where nothing changes.

    Raises:
        HttpError: 400 for a new version without its uri; 409 for what steps or an applied manifest decides.
    """
    model = (obj.get("spec") or {}).get("model") or {}
    if body.version is not None and body.uri is None and body.version != model.get("version"):
        raise invalid(
            f"version {body.version} needs its uri: {obj['metadata']['name']} serves {model.get('version')} from "
            f"{model.get('uri')}",
            "uri",
            "missing_required_parameter",
        )
    if body.traffic_percent is not None:
        _check_by_hand(obj)
    changes = {path: value for path, value in _changes(body).items() if _at(obj.get("spec") or {}, path) != value}
    return _patch(obj, changes)


def traffic_patch(split: Split, obj: Object) -> tuple[Object | None, int]:
    """(the merge patch, None where nothing changes; percent of the revision under test).

    Raises:
        HttpError: 404 for a version that gets no traffic, 409 for what steps or an applied manifest decides, and for a
            spec that may be of another version than the status names.
    """
    known = versions(obj)
    for name in split:
        if name not in known:
            listed = ", ".join(list(known)[:MOST_VERSIONS]) or "none yet"
            raise HttpError(
                404, f"version {name} is not among those that traffic can go to: {listed}", code="version_not_found",
                param=name,
            )  # fmt: skip
    under_test = (obj.get("status") or {}).get("canaryRevision")
    if not under_test:
        return None, 0
    _check_by_hand(obj)
    percent = next((part for name, part in split.items() if known[name] == under_test), 0)
    if canary_of(obj).get("trafficPercent") == percent:
        return None, percent
    if percent and not is_observed(obj):
        # The spec may have a newer version than the one that is named here, which would get its traffic.
        raise _conflict("the operator has not seen the last change of the spec yet: try again in a second", "conflict")
    return _patch(obj, {_TRAFFIC: percent}), percent


def appliers(obj: Object, path: tuple[str, ...]) -> list[str]:
    """The managers of a field of the spec that apply manifests, by metadata.managedFields."""
    found = []
    for entry in obj["metadata"].get("managedFields") or ():
        manager = str(entry.get("manager") or "")
        applies = entry.get("operation") == _APPLIES or manager in _APPLIERS
        if applies and manager != FIELD_MANAGER and not entry.get("subresource") and _has(entry, path):
            found.append(manager)
    return found


def _check_by_hand(obj: Object) -> None:
    """Raises HttpError: 409 where steps decide the traffic."""
    if is_blue_green(obj):
        raise _conflict("spec.strategy.blueGreen moves all traffic at once: promote or abort it", "strategy_conflict")
    if steps := canary_of(obj).get("steps"):
        named = ", ".join(_named(step) for step in steps[:MOST_STEPS])
        more = f" and {len(steps) - MOST_STEPS} more" if len(steps) > MOST_STEPS else ""
        raise _conflict(
            f"spec.strategy.canary.steps decide the traffic: {named}{more}; promote or abort the rollout, or "
            "remove the steps",
            "steps_conflict",
        )


def _named(step: Any) -> str:
    """A step in a message, such as setWeight 20."""
    if not isinstance(step, dict) or not step:
        return "?"
    name = next(iter(step))
    value = step[name]
    return f"{name} {value}" if isinstance(value, int) else str(name)


def _conflict(message: str, code: str, param: str | None = None) -> HttpError:
    return HttpError(409, message, code=code, param=param)


_PARAMS = {
    ("model", "version"): "version",
    ("model", "uri"): "uri",
    ("replicas",): "resources.replicas",
    ("resources", "accelerator", "count"): "resources.gpu",
    ("resources", "accelerator"): "resources.gpu",
    _TRAFFIC: "traffic_percent",
}


def _changes(body: DeploymentBody) -> dict[tuple[str, ...], Any]:
    """The fields of the spec that the body names, by path; None removes one."""
    gpu = body.resources.gpu
    accelerator = ("resources", "accelerator", "count") if gpu else ("resources", "accelerator")
    wanted: dict[tuple[str, ...], Any] = {
        ("model", "version"): body.version,
        ("model", "uri"): body.uri,
        ("replicas",): body.resources.replicas,
        _TRAFFIC: body.traffic_percent,
    }
    found = {path: value for path, value in wanted.items() if value is not None}
    return found if gpu is None else {**found, accelerator: gpu or None}


def _patch(obj: Object, changes: dict[tuple[str, ...], Any]) -> Object | None:
    if not changes:
        return None
    for path in changes:
        if managers := appliers(obj, path):
            raise _conflict(
                f"spec.{'.'.join(path)} comes from a manifest that {', '.join(sorted(set(managers))[:3])} applies, "
                "which would undo the change: change it there, or remove the field from the manifest",
                "field_owned",
                _PARAMS[path],
            )
    # With the version that was read: what was checked is what is changed.
    return {"metadata": {"resourceVersion": obj["metadata"]["resourceVersion"]}, "spec": _nested(changes)}


def _nested(changes: dict[tuple[str, ...], Any]) -> Object:
    spec: Object = {}
    for path, value in changes.items():
        place = spec
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = value
    return spec


def _at(spec: Object, path: tuple[str, ...]) -> Any:
    found: Any = spec
    for name in path:
        found = (found or {}).get(name)
    return found


def _has(entry: Object, path: tuple[str, ...]) -> bool:
    fields: Any = entry.get("fieldsV1") or {}
    for name in ("spec", *path):
        fields = fields.get(f"f:{name}") if isinstance(fields, dict) else None
        if fields is None:
            return False
    return True
