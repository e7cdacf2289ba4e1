"""Settings of the programs for administrators of the generation log."""

import sys
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from slipway_process.sealing import Keyring
from slipway_process.settings import ProcessSettings
from slipway_process.values import FilePath, Flag, Name

from .table import Bounds, GenerationTable

_KEPT = Bounds(36_500 * 86_400.0, sys.maxsize)  # nothing is deleted by the way


def _time(text: str) -> datetime | None:
    """Raises ValueError."""
    moment = datetime.fromisoformat(text) if text else None
    return moment.replace(tzinfo=moment.tzinfo or UTC) if moment else None


def _written_time(text: str) -> str:
    try:
        _time(text)
    except ValueError:
        raise ValueError("write a time as 2026-11-25T04:00:00Z") from None
    return text


def _not_empty(name: str) -> str:
    """An empty variable of a shell must not stand for all rows."""
    if not name:
        raise ValueError("is empty: leave it out for all of them")
    return name


# Without one, the default, it is not checked.
Chosen = Annotated[Name, AfterValidator(_not_empty), Field(validate_default=False)]


class GenerationLogSettings(ProcessSettings):
    """Which rows of which database."""

    model_config = SettingsConfigDict(env_prefix="SLIPWAY_GATEWAY_", env_ignore_empty=True)

    generation_log_url: Annotated[SecretStr, Flag("URL")] = Field(description="as of slipway-gateway")
    tenant: Chosen = Field("", description="name of the Tenant whose rows they are")


class EraseSettings(GenerationLogSettings):
    """Deletes rows of the generation log; gateways may run meanwhile."""

    model_config = SettingsConfigDict(cli_prog_name="python -m slipway_gateway.generations.erase")

    tenant: Chosen = Field(description="name of the Tenant whose rows they are")
    request_id: Chosen = Field(
        "", description="id of one request, as the gateway or its client wrote it; without one all rows of the Tenant"
    )


class ExportSettings(GenerationLogSettings):
    """Writes rows of the generation log, with plain contents, to a file."""

    model_config = SettingsConfigDict(cli_prog_name="python -m slipway_gateway.generations.export")

    tenant: Chosen = Field("", description="name of the Tenant whose rows they are; without one all rows")
    generation_log_keys_file: FilePath = Field("", description="as of slipway-gateway")
    since: Annotated[str, AfterValidator(_written_time), Flag("TIME")] = Field(
        "", description="time of the first rows, as 2026-11-25T04:00:00Z"
    )
    until: Annotated[str, AfterValidator(_written_time), Flag("TIME")] = Field(
        "", description="time before which the last rows are"
    )
    out: Annotated[str, Flag("FILE")] = Field(
        "-",
        description="file to write, which must not exist; one that ends with .parquet is Parquet, any other lines "
        "of JSON; -: lines of JSON on stdout",
    )

    @property
    def first(self) -> datetime | None:
        """The time of the first rows."""
        return _time(self.since)

    @property
    def end(self) -> datetime | None:
        """The time before which the last rows are."""
        return _time(self.until)


def opened(url: SecretStr, keyring: Keyring) -> GenerationTable:
    """
    Raises:
        ValueError: the URL names no database that is known.
    """
    try:
        return GenerationTable(url.get_secret_value(), keyring, _KEPT)
    except ValueError as error:
        raise ValueError(f"--generation-log-url: {error}") from None
