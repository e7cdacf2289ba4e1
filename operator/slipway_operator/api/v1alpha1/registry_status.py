"""status.registry: the version of a registered model that spec.model.uri was resolved to, and what is known of it."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from slipway_contracts.api.markers import AtMost
from slipway_contracts.api.types import Time

MOST_ALIASES, MOST_TAGS, MOST_METRICS = 32, 16, 16
LONGEST_LINE, LONGEST_DESCRIPTION = 256, 1024
_Line = Annotated[str, AtMost(LONGEST_LINE)]


@dataclass(frozen=True, slots=True)
class RegistryStatus:
    """Version of a registered model that a models:/ URI was resolved to. Texts of the registry are shortened."""

    uri: Annotated[str, AtMost(2048)]
    """spec.model.uri that was resolved."""
    version: Annotated[str, AtMost(16)]
    """Number of the version."""
    source: Annotated[str, AtMost(2048)]
    """Location of its files, from which pods download them."""
    since: Time
    """Time at which the operator found this version under the URI."""
    owner: _Line = ""
    """User who made the version, or the run that it is from."""
    description: Annotated[str, AtMost(LONGEST_DESCRIPTION)] = ""
    """Description of the version, or else of the registered model."""
    tags: Annotated[tuple[Annotated[_Line, Field(description="NAME=VALUE.")], ...], AtMost(MOST_TAGS)] = ()
    """Tags of the version, without those of Slipway: NAME=VALUE."""
    run: Annotated[str, AtMost(64)] = ""
    """Id of the run that made the version."""
    metrics: Annotated[tuple[Annotated[_Line, Field(description="NAME=VALUE.")], ...], AtMost(MOST_METRICS)] = ()
    """Last values of the metrics of the run: NAME=VALUE."""
    dataset: _Line = ""
    """Name of the first data set of the run, with its digest."""
    aliases: Annotated[tuple[Annotated[_Line, Field(description="ALIAS=VERSION.")], ...], AtMost(MOST_ALIASES)] = ()
    """Aliases of the registered model: ALIAS=VERSION."""
    latest: Annotated[str, AtMost(16)] = ""
    """Number of its newest version."""
