"""The API of ModelDeployments as a client needs it: group, labels, and the type of objects."""

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]

GROUP_VERSION = "slipway.dev/v1alpha1"
KIND = "modeldeployments"
RESOURCE = "modeldeployments.slipway.dev"
ADAPTERS = "modeladapters"
ADAPTER_RESOURCE = "modeladapters.slipway.dev"
ADAPTER_PREFIXES = ("modeladapter/", "modeladapters/", "madapter/")  # before a name in place of a ModelDeployment's
POOLS = "modelpools"
POOL_LABEL = "slipway.dev/modelpool"
ROUTES = "modelroutes"
EXPERIMENTS = "experiments"
TENANTS = "tenants"
TENANT_RESOURCE = "tenants.slipway.dev"
MODEL_DEPLOYMENT_LABEL = "slipway.dev/modeldeployment"
COMPONENT_LABEL = "app.kubernetes.io/component"
REVISION_LABEL = "slipway.dev/revision"
STANDBY_SUFFIX = "-standby"  # of that label, at standby pods that wait


def adapter_of(name: str) -> str | None:
    """The ModelAdapter that an argument names, as in modeladapter/NAME; None where it names a ModelDeployment."""
    return next((name.removeprefix(start) for start in ADAPTER_PREFIXES if name.startswith(start)), None)


def label_of(name: str) -> str:
    """The value of MODEL_DEPLOYMENT_LABEL of what an argument names: that of a ModelAdapter ends in .adapter."""
    adapter = adapter_of(name)
    return name if adapter is None else f"{adapter}.adapter"
