"""What all API types are made of: their base and the scalars that Kubernetes knows."""

from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from slipway_contracts.api.markers import CelRule, Format
from slipway_contracts.api.times import parse_time
from slipway_contracts.api.writing import camel

T = TypeVar("T", bound=type)

# Validators are built at their first use: that of a type contains those of its parts.
CONFIG = ConfigDict(frozen=True, strict=True, extra="ignore", alias_generator=camel, defer_build=True)


class ApiType(BaseModel):
    """A part of a custom resource: immutable, and strict about types. Fields of a later release are ignored."""

    model_config = CONFIG


def strict(kind: T) -> T:
    """Have a dataclass and those in it read as API types are."""
    setattr(kind, "__pydantic_config__", CONFIG)  # noqa: B010
    return kind


def _time(value: Any) -> datetime:
    if not isinstance(value, str):
        raise ValueError("must be a time like 2026-01-31T12:00:00Z")
    try:
        return parse_time(value)
    except OverflowError:
        raise ValueError(f"{value} is beyond any calendar") from None


Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1), Format("int32")]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1), Format("int64")]
Time = Annotated[datetime, BeforeValidator(_time), Format("date-time")]
IntOrString = int | str
# CEL: whether a text is a duration, in hours, minutes and seconds.
DURATION = "self.matches('^([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,6}s)?$')"
Duration = Annotated[str, Field(min_length=2, max_length=32)]


def duration_rule(field: str, examples: str) -> CelRule:
    """That a field is a duration."""
    return CelRule(DURATION, f"{field} is written in hours, minutes and seconds: write for example {examples}")
