"""spec.pool of a ModelDeployment: its model is an entry of a ModelPool, and has no pods of its own."""

from typing import Annotated

from pydantic import Field

from slipway_contracts.api.markers import CelRule
from slipway_contracts.api.types import ApiType, Int32, IntOrString

# Of a pool, a beginning of the names of its pods.
PoolName = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]


class PoolMembership(ApiType):
    """ModelPool that serves the model, in the same namespace. The model gets no pods of its own: each revision is an
    entry of the pool, which loads it on demand. A change creates a new revision."""

    name: PoolName
    """Name of the ModelPool."""
    pinned: bool = False
    """Whether the model is loaded when the pool starts, and never evicted."""
    max_in_flight: Annotated[Int32, Field(ge=1, le=65536)] | None = None
    """Requests that run or wait for the model in a pod of the pool; more get status 429. Default is 64."""
    max_memory: (
        Annotated[
            IntOrString,
            CelRule(
                "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0')) && "
                "!quantity(string(self)).isGreaterThan(quantity('64Ti'))",
                "spec.pool.maxMemory must be a positive quantity of at most 64Ti: write for example 512Mi",
            ),
        ]
        | None
    ) = None
    """Memory that the process of the model may allocate. Default is all of the pool's."""
    threads: Annotated[Int32, Field(ge=1, le=256)] | None = None
    """Threads of the model's runtime. Default is 1."""
