"""What callers send: typed, bounded, and refused by the name of the field."""

import re
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from slipway_process.serving.errors import HttpError, invalid

MAX_BYTES = 16 << 10
MAX_REPLICAS = 10_000
_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")

Name = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")]
Percent = Annotated[int, Meta(ge=0, le=100)]

Body = TypeVar("Body")


class Resources(Struct, frozen=True, forbid_unknown_fields=True):
    """`gpu`: accelerators of a pod; 0 for none."""

    gpu: Annotated[int, Meta(ge=0, le=16)] | None = None
    replicas: Annotated[int, Meta(ge=0, le=MAX_REPLICAS)] | None = None


class DeploymentBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /api/v1/deployments. A field that is left out stays as it is."""

    model_name: Name
    version: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    uri: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None
    traffic_percent: Percent | None = None
    resources: Resources = Resources()


Split = dict[Annotated[str, Meta(min_length=1, max_length=128)], Percent]
_TrafficBody = Annotated[Split, Meta(min_length=1, max_length=2)]


def deployment(data: bytes) -> DeploymentBody:
    """Read the body of a POST. Raises HttpError: 400 with the field."""
    return _read(data, DeploymentBody)


def split(data: bytes) -> Split:
    """Read the body of a PUT of the traffic: percentages of one or two versions. Raises HttpError: 400."""
    read: Split = _read(data, _TrafficBody)
    if sum(read.values()) != 100:
        raise invalid(f"the percentages must be 100 together, not {sum(read.values())}", code="invalid_value")
    return read


def _read(data: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _refused(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body is no JSON: {error}", code="invalid_json") from None


def _refused(text: str) -> HttpError:
    at = _AT.search(text)
    path = at["path"] if at else ""
    if named := _UNKNOWN.search(text) or _MISSING.search(text):
        path = f"{path}.{named['name']}" if path else named["name"]
    return invalid(_AT.sub("", text), path or None, "invalid_value")
