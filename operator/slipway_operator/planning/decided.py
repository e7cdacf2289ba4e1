"""The decisions from which a plan makes objects and status; and the settings of the installation."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slipway_contracts.route_table import Traffic
from slipway_operator.api.v1alpha1.hooks import Ended
from slipway_operator.model.deployment.admin_policy import AdminPolicy
from slipway_operator.model.inputs.pod_inputs import PodInputs
from slipway_operator.planning.facts.situation import Course
from slipway_operator.planning.sizing.sizes import Sizes
from slipway_operator.planning.sizing.standby import Share


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What the installation adds to every ModelDeployment."""

    server_image: str  # image of revisions whose spec names none
    endpoint: str  # base URL of the gateways for OpenAI clients
    lease: str = ""  # namespace/name of the Lease of the operator that plans; empty without one
    policy: AdminPolicy = field(default_factory=AdminPolicy)
    tls: bool = False  # pods of new revisions serve HTTPS, where their engine can
    predict_image: str = ""  # in place of server_image for models that need no torch; empty: no such image
    cpu_image: str = ""  # in place of server_image for pods without a device; empty: no such image
    pull_secrets: tuple[str, ...] = ()  # Secrets by which pods of new revisions pull images, in their own namespace
    tracking_url: str = ""  # MLflow tracking server of the installation; empty: none
    standby_priority_class: str = ""  # PriorityClass of standby pods; empty: that of the other pods

    def image_of(self, inputs: PodInputs) -> str:
        """The image of a new revision: a smaller one where the spec itself says what is not needed."""
        if inputs.engine.image:
            return inputs.engine.image
        if self.predict_image and inputs.needs_no_torch:
            return self.predict_image
        return self.cpu_image if self.cpu_image and inputs.needs_no_device else self.server_image


@dataclass(frozen=True, slots=True)
class Decided:
    """The course after this reconcile, with the counts and weights that follow from it."""

    course: Course
    sizes: Sizes
    traffic: Traffic | None
    desired: Mapping[str, int]  # pods by revision
    ended: Ended | None  # the rollout that ended last
    shares: Mapping[str, Share]  # of these pods by revision
