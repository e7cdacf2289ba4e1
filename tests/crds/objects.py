"""ModelDeployments to try, and where they go."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from testkit.cluster.api import GROUP_PATH, Answer, Api

Spec = dict[str, Any]
Change = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One rule. `message` is a part of the refusal; `bad` and `good` are changes to the smallest spec."""

    id: str
    message: str
    bad: tuple[Change, ...]
    good: tuple[Change, ...]


def spec(change: Change | None = None) -> Spec:
    """The smallest spec with a change merged over it; a value of None removes the field."""
    return _merged({"model": {"uri": "hf://org/model"}}, change or {})


def model_deployment(change: Change | None = None, name: str = "chat") -> dict[str, Any]:
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": spec(change),
    }


def path(namespace: str, name: str = "", subresource: str = "", plural: str = "modeldeployments") -> str:
    parts = [GROUP_PATH, "namespaces", namespace, plural, name, subresource]
    return "/".join(part for part in parts if part)


def dry_run(api: Api, body: dict[str, Any], namespace: str = "default") -> Answer:
    """The answer of the API server to a creation as a strict dry run."""
    return api.post(path(namespace), body, dryRun="All", fieldValidation="Strict")


def _merged(base: Any, change: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(change, dict):
        return deepcopy(change)
    kept = {key: value for key, value in base.items() if change.get(key, value) is not None}
    fresh = {key: _merged(base.get(key), value) for key, value in change.items() if value is not None}
    return {**kept, **fresh}
