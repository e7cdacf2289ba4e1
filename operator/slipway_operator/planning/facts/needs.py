"""What a new revision needs of the installation and of the cluster, before anything of it is created."""

from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.deployment.admin_policy import AdminPolicy
from slipway_operator.model.deployment.spec import Invalid, Spec
from slipway_operator.planning.facts import groups

CLAIMS_NOT_SERVED = "ResourceClaimsNotServed"
REASONS = (*groups.REASONS, CLAIMS_NOT_SERVED)  # what is missing may be installed, or come with an upgrade
LOOK_AGAIN_S = 30.0  # no event reports that it is there


def problem(spec: Spec, current: str, observed: Observed, policy: AdminPolicy, namespace: str) -> Invalid | None:
    """Why no revision can be made of the spec now; None when one can, or when it and what it needs exist already."""
    missing = groups.problem(spec, observed)
    if current in observed.snapshots:
        return missing
    return policy.problem(spec.inputs, namespace) or _claims(spec, observed) or missing


def _claims(spec: Spec, observed: Observed) -> Invalid | None:
    """Why the spec's claim of devices cannot be met; None when it can, or there is none.

    An API server without ResourceClaims drops them silently, and pods would run without their devices.
    """
    resources = spec.inputs.resources
    if not resources.has_claim or observed.serves_claims:
        return None
    field = "resourceClaimTemplateName" if resources.claim_template else "resourceClaimName"
    name = resources.claim_template or resources.claim
    return Invalid(
        f"spec.resources.accelerator.{field} is {name!r}, and this cluster does not serve resource.k8s.io/v1: use "
        "Kubernetes 1.34 or newer, or write resource in its place",
        CLAIMS_NOT_SERVED,
    )
