"""The fields that v1beta1 has under another name, and objects of one version as those of the other; pure.

Each difference is lossless both ways, and what is no difference stays as it is: also what no schema knows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

GROUP = "slipway.dev"
STORED, BETA = "v1alpha1", "v1beta1"
ITEMS = "[]"  # part of a path: each item of a list

Path = tuple[str, ...]


class NotConvertible(ValueError):
    """The object has no such version; the message says what it is."""


@dataclass(frozen=True, slots=True)
class Words:
    """Values of v1beta1 for a boolean of v1alpha1."""

    true: str
    false: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A field below `path`. `description`: of the field in v1beta1; empty: as in v1alpha1.

    `texts`: parts of the messages and descriptions of a kind that name the field, and what v1beta1 has in their place.
    """

    path: Path
    stored: str
    beta: str
    words: Words | None = None
    description: str = ""
    texts: tuple[tuple[str, str], ...] = ()

    def to_beta(self, value: Any) -> Any:
        """A value of v1alpha1 in v1beta1. What is no boolean stays, and the schema of v1beta1 refuses it."""
        if self.words is None or not isinstance(value, bool):
            return value
        return self.words.true if value else self.words.false

    def to_stored(self, value: Any) -> Any:
        """A value of v1beta1 in v1alpha1. What is none of the words stays, and no schema takes it."""
        if self.words is None or not isinstance(value, str):
            return value
        return {self.words.true: True, self.words.false: False}.get(value, value)


_CANARY = ("spec", "strategy", "canary")
_STRATEGY = (
    Difference(
        _CANARY,
        "baselinePod",
        "baseline",
        Words("BaselinePods", "StablePods"),
        "Pods that the new revision is compared with. StablePods: stable's own pods. BaselinePods: new pods of stable, "
        "equally many, equally old and with equal weight. They exist while an analysis is ahead and the new revision "
        "has less than half of the requests. They count towards capacity.maxSurge. If there is no room or no node for "
        "them, the rollout continues without them, and the status shows it. Default is StablePods.",
        (
            ("baselinePod: true", "baseline: BaselinePods"),
            ("needs no baselinePod", "needs no BaselinePods"),
            ("needs baselinePod", "needs baseline: BaselinePods"),
            ("baselinePod", "baseline"),
        ),
    ),
    Difference(
        _CANARY,
        "holdOnBudget",
        "onErrorBudgetSpent",
        Words("Hold", "Continue"),
        "What the rollout does while the error budget of spec.slo is spent. Continue: its steps. Hold: it takes no "
        "further step. It does not reject the revision: only an analysis does. spec.rollout.promote and promoteFull "
        "still work, and so does abort. Default is Continue.",
        (("holdOnBudget", "onErrorBudgetSpent"),),
    ),
)
_FALLBACKS = ("spec.traffic.fallback ", "spec.traffic.fallbacks ")

DIFFERENCES: Mapping[str, tuple[Difference, ...]] = {
    "ModelDeployment": (
        *_STRATEGY,
        Difference(("spec", "traffic"), "fallback", "fallbacks", texts=(_FALLBACKS,)),
        Difference(
            ("spec", "traffic", "cache"),
            "shared",
            "scope",
            Words("AllTenants", "Tenant"),
            "Who gets a response that is kept. Tenant: the tenant whose request it answered. AllTenants: all tenants. "
            "The time of a response then shows a tenant whether the same request was sent before. Default is Tenant.",
        ),
    ),
    "ModelAdapter": _STRATEGY,
    "ModelRoute": (Difference(("spec", "rules", ITEMS), "fallback", "fallbacks", texts=(_FALLBACKS,)),),
    "Tenant": (
        Difference(
            ("spec",),
            "external",
            "externalProviders",
            Words("Allowed", "Denied"),
            "Whether requests of the tenant may go to APIs of other providers, where a ModelDeployment or ModelRoute "
            "names one as fallback. Their prices are those of the model NAMESPACE/NAME/FALLBACK. Default is Denied.",
        ),
    ),
}


def converted(obj: Mapping[str, Any], version: str) -> dict[str, Any]:
    """An object of one version as that of `version`; of its own version it stays the same.

    Raises:
        NotConvertible: for other kinds, groups and versions.
    """
    kind, _, present = _identity(obj)
    if version not in (STORED, BETA):
        raise NotConvertible(f"{kind} has no version {version[:64]}: there are {STORED} and {BETA}")
    result: Any = {**obj, "apiVersion": f"{GROUP}/{version}"}
    if present == version:
        return dict(result)
    for difference in DIFFERENCES[kind]:
        if version == BETA:
            names, change = (difference.stored, difference.beta), difference.to_beta
        else:
            names, change = (difference.beta, difference.stored), difference.to_stored
        result = _moved(result, difference.path, *names, change)
    return dict(result)


def as_stored(obj: Mapping[str, Any]) -> dict[str, Any]:
    """What an author wrote, in v1alpha1; an object that is not of v1beta1 as it is."""
    try:
        return converted(obj, STORED)
    except NotConvertible:
        return dict(obj)


def _identity(obj: Mapping[str, Any]) -> tuple[str, str, str]:
    """(kind, group, version)."""
    kind, api_version = obj.get("kind"), obj.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(api_version, str):
        raise NotConvertible("it has no kind or no apiVersion")
    group, _, version = api_version.rpartition("/")
    if group != GROUP or kind not in DIFFERENCES or version not in (STORED, BETA):
        raise NotConvertible(f"{kind[:64]} of {api_version[:64]} is not of two versions here")
    return kind, group, version


def _moved(node: Any, path: Path, name: str, becomes: str, change: Callable[[Any], Any]) -> Any:
    """A node with the field under its new name, in its former place. A field that has that name already is none of the
    version that is read: the API server has pruned it before, and it would take the field's place."""
    if path and path[0] == ITEMS:
        return [_moved(item, path[1:], name, becomes, change) for item in node] if isinstance(node, list) else node
    if not isinstance(node, dict):
        return node
    if path:
        return {**node, path[0]: _moved(node[path[0]], path[1:], name, becomes, change)} if path[0] in node else node
    if name not in node and becomes not in node:
        return node
    return {
        becomes if key == name else key: change(value) if key == name else value
        for key, value in node.items()
        if key != becomes
    }
