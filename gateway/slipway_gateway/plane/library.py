"""Whether the compiled data plane accepts the connections of this gateway, by its settings and by what is installed."""

from enum import StrEnum
from typing import NamedTuple

from slipway_plane import NATIVE, WHY_MISSING

from ..settings import GatewaySettings


class PlaneState(StrEnum):
    """The value of the metric `slipway_gateway_plane`."""

    ON = "on"
    OFF = "off"
    MISSING = "missing"  # wanted where it is there, and it is not


class Choice(NamedTuple):
    state: PlaneState
    why: str


def choose(settings: GatewaySettings) -> Choice:
    """
    Raises:
        ValueError: it is required, and the library is missing.
    """
    if settings.plane == "off":
        return Choice(PlaneState.OFF, "--plane is off")
    if NATIVE is None:
        if settings.plane == "required":
            raise ValueError(f"--plane required: {WHY_MISSING}; `make setup` builds it where Rust's cargo works")
        return Choice(PlaneState.MISSING, WHY_MISSING)
    return Choice(PlaneState.ON, f"version {NATIVE.version()}")
