"""The controller of an object, by its ownerReferences; we never change what another one controls."""

from slipway_operator.api.objects import Object
from slipway_operator.model import labels


def is_controlled(item: Object) -> bool:
    """Whether the object has a controller."""
    return _controller(item) is not None


def is_controlled_by(item: Object, uid: str) -> bool:
    """Whether the object's controller has this uid; a former controller of the same name does not count."""
    found = _controller(item)
    return found is not None and found.get("uid") == uid


def foreign_controller(item: Object, obj: Object) -> str:
    """Return kind and name of the controller of `item`; empty without one, or when it is the ModelDeployment `obj`.

    A former ModelDeployment of the same name does not count: the garbage collector is about to delete its children.
    """
    found, metadata = _controller(item), obj["metadata"]
    if found is None or found.get("uid") == metadata["uid"]:
        return ""
    group = str(found.get("apiVersion", "")).partition("/")[0]
    if (group, found.get("kind"), found.get("name")) == (labels.GROUP, *labels.object_of(metadata["name"])):
        return ""
    return f"{found.get('kind')} {found.get('name')}"


def controller_of(item: Object) -> tuple[str, str]:
    """Return kind and name of the object's controller; both empty without one."""
    found = _controller(item) or {}
    return str(found.get("kind") or ""), str(found.get("name") or "")


def is_leaving(item: Object) -> bool:
    """Whether the object is being deleted: a finalizer may delay the end for long, but nothing cancels it."""
    return bool(item["metadata"].get("deletionTimestamp"))


def _controller(item: Object) -> Object | None:
    references = item["metadata"].get("ownerReferences") or ()
    return next((one for one in references if one.get("controller")), None)


def holds_own_keys(secret: Object) -> bool:
    """Whether a Secret has Slipway's own keys, which the operator may read, but authors of objects may not."""
    return (secret["metadata"].get("labels") or {}).get(labels.MANAGED_BY) == "slipway"
