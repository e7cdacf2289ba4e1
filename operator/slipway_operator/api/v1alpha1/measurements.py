"""What the status remembers of metrics with a provider. Names and meanings are Argo's."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from slipway_operator.api.markers import AnyText, AtMost
from slipway_operator.api.types import Int64, Time


class Phase(StrEnum):
    """What became of a measurement, and of a metric."""

    RUNNING = "Running"
    SUCCESSFUL = "Successful"
    FAILED = "Failed"
    INCONCLUSIVE = "Inconclusive"
    ERROR = "Error"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement.

    One measurement that was taken.
    """

    at: Time
    """When its answer was written down."""
    phase: Annotated[Phase, AnyText()]
    """Successful, Failed, Inconclusive or Error."""
    value: str = ""
    """What was answered."""
    message: str = ""
    """Why it is not good."""


@dataclass(frozen=True, slots=True)
class MetricRun:
    """One metric.

    All that an analysis remembers of a metric with a provider.
    """

    name: str
    """Its name."""
    phase: Annotated[Phase, AnyText()] = Phase.RUNNING
    """Running, Successful, Failed, Inconclusive or Error."""
    successful: Int64 = 0
    """Good measurements."""
    failed: Int64 = 0
    """Failed ones."""
    inconclusive: Int64 = 0
    """Inconclusive ones."""
    error: Int64 = 0
    """Errors."""
    consecutive_success: Int64 = 0
    """Good ones since the last that was not."""
    consecutive_error: Int64 = 0
    """Errors since the last that was none."""
    measurements: Annotated[tuple[Measurement, ...], AtMost(10)] = ()
    """The last ones, newest last."""
    message: str = ""
    """Why it ended as it did."""

    @property
    def count(self) -> int:
        """Measurements that were no errors."""
        return self.successful + self.failed + self.inconclusive

    @property
    def taken(self) -> int:
        """All measurements."""
        return self.count + self.error
