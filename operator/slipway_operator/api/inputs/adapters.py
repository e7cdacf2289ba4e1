"""spec.adapters of a ModelDeployment: room for LoRA adapters in its pods, which ModelAdapters name."""

from typing import Annotated

from pydantic import Field

from slipway_contracts.api.markers import CelRule
from slipway_contracts.api.types import ApiType, Int32, IntOrString
from slipway_operator.api.inputs.model import ObjectName


class AdapterSecretRef(ApiType):
    """Secret in the same namespace with the credentials of the sources of adapters. Only the container that downloads
    them gets it, and reads known keys of it: HF_TOKEN, .dockerconfigjson, and those of spec.model.secretRef for object
    stores."""

    name: ObjectName
    """Name of the Secret."""


class AdaptersSpec(ApiType):
    """Room for LoRA adapters in each pod. ModelAdapters name the ModelDeployment, and are served by its pods beside the
    model. A change creates a new revision; ModelAdapters that come and go restart nothing."""

    max_loaded: Annotated[Int32, Field(ge=1, le=256)] = 16
    """Adapters that are in a pod's memory at a time, and so in a batch. Beyond it those that were not used for the
    longest time give way, and are read again for their next request."""
    max_rank: Annotated[Int32, Field(ge=1, le=512)] = 16
    """Highest rank of an adapter. Engines reserve memory for it."""
    memory: (
        Annotated[
            IntOrString,
            CelRule(
                "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0')) && "
                "!quantity(string(self)).isGreaterThan(quantity('64Ti'))",
                "spec.adapters.memory must be a positive quantity of at most 64Ti: write for example 2Gi",
            ),
        ]
        | None
    ) = None
    """Memory of all adapters that are loaded, for the engine type slipway. Default is 1Gi."""
    secret_ref: AdapterSecretRef | None = None
