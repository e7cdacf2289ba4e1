"""Settings of the fetcher. Only flags set what it downloads and from where: users control the variables of pods."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from slipway_process.settings import ProcessSettings
from slipway_process.values import Bytes, Flag, Folder, LogLevel, Names, OptionalFile, Switch, Variable

from ..telemetry.termination import Parser
from .guard import ALLOW_NETWORKS
from .hub import ENDPOINT

SCHEMES = "file://, pvc://, hf:// and https://"


class FetcherSettings(ProcessSettings):
    """Brings a model folder to the pod, checks it, and writes a marker when it is whole."""

    model_config = SettingsConfigDict(cli_prog_name="slipway-fetcher", env_ignore_empty=True)

    log_level: Annotated[LogLevel, Flag(""), Variable("SLIPWAY_LOG_LEVEL")] = Field(
        "info", description="lowest level that the log has"
    )
    uri: Annotated[str, Variable(), Flag("URI")] = Field(description=f"where the model is: {SCHEMES}")
    revision: Annotated[str, Variable(), Flag("REVISION")] = Field(
        "",
        description="hf: branch, tag or commit; https: sha256:DIGEST of the archive or the manifest; file and pvc: "
        "sha256:DIGEST of the folder, as the marker has it",
    )
    dest: Annotated[Folder, Variable()] = Field(description="folder for the marker and downloads")
    any_engine: Annotated[Switch, Variable()] = Field(
        False,
        description="for another engine than slipway-server: takes GGUF and ONNX files too, requires no config.json, "
        "and links `current` in --dest to the folder of the model",
    )
    max_bytes: Annotated[Bytes, Variable()] = Field(1 << 40, description="largest total size of the files")
    pin_file: Annotated[OptionalFile, Variable("SLIPWAY_PIN_FILE")] = Field(
        None, description="commit and digest that the model must have, where the file exists"
    )
    allow_network: Annotated[tuple[str, ...], Variable(), Flag("CIDR", repeated=True)] = Field(
        (), description="private addresses that redirects may lead to; repeatable"
    )
    allow_networks: Annotated[Names, Flag(""), Variable(ALLOW_NETWORKS)] = Field(
        (), description="the same, with commas; joins those of --allow-network"
    )
    allow_host: Annotated[tuple[str, ...], Variable(), Flag("HOST", repeated=True)] = Field(
        (), description="a host that may be on this machine: for tests; repeatable"
    )
    hub_endpoint: Annotated[str, Flag(""), Variable("HF_ENDPOINT")] = Field(ENDPOINT, description="URL of the hub")
    hub_token: Annotated[
        SecretStr,
        AfterValidator(lambda token: SecretStr(token.get_secret_value().strip())),
        Flag(""),
        Variable("HF_TOKEN"),
    ] = Field(SecretStr(""), description="token of the hub, sent only to it; in a cluster from spec.model.secretRef")


def parse(arguments: Sequence[str]) -> FetcherSettings:
    """Read the command line and the environment; a mistake is in the termination log too.

    Raises:
        SystemExit: 0 after --help; 2 with one sentence about all invalid values.
    """
    return FetcherSettings.parse(arguments, Parser(prog="slipway-fetcher", allow_abbrev=False))
