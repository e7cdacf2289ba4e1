"""The API of ModelDeployments as a client needs it: group, labels, and the type of objects."""

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]

GROUP_VERSION = "slipway.dev/v1alpha1"
KIND = "modeldeployments"
RESOURCE = "modeldeployments.slipway.dev"
POOLS = "modelpools"
POOL_LABEL = "slipway.dev/modelpool"
ROUTES = "modelroutes"
EXPERIMENTS = "experiments"
TENANTS = "tenants"
TENANT_RESOURCE = "tenants.slipway.dev"
MODEL_DEPLOYMENT_LABEL = "slipway.dev/modeldeployment"
COMPONENT_LABEL = "app.kubernetes.io/component"
REVISION_LABEL = "slipway.dev/revision"
