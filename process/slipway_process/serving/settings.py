"""Settings that the servers of language models and of classic models share."""

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from slipway_process import spans
from slipway_process.settings import ProcessSettings
from slipway_process.termination import Parser
from slipway_process.values import Address, Count, FilePath, Flag, Folder, Name, Port, Seconds, Switch

Version = Annotated[str, AfterValidator(lambda version: version or "unversioned"), Flag("VERSION")]


class ServingSettings(ProcessSettings):
    """Which model is served, where, and for which clients."""

    model_config = SettingsConfigDict(env_prefix="SLIPWAY_")
    parser = Parser

    model: Folder = Field(description="folder of the model, or with the fetcher's slipway-model.json")
    served_model_name: Name = Field(
        "", description="`model` of requests, another name is 404; without one the folder's name"
    )
    model_version: Version = Field("unversioned", description="`model_version` in responses")
    host: Address = Field("0.0.0.0", description="address to listen on")
    port: Port = Field(8000, description="port of the API; 0 selects a free one, which the log line `listening` has")
    probe_port: Port = Field(8001, description="port of the probes' own thread; 0 selects a free one")
    ssl_certfile: FilePath = Field(
        "",
        description="certificate of the API port with its chain, in PEM, read again when it changes; without one HTTP",
    )
    ssl_keyfile: FilePath = Field("", description="private key of that certificate")
    ssl_ca_certs: FilePath = Field(
        "",
        validate_default=True,
        description="authorities by which clients must be certified; without a certificate they get the probes and "
        "/metrics alone",
    )
    drain_timeout_s: Seconds = Field(600.0, description="time for running requests after SIGTERM")
    stall_timeout_s: Seconds = Field(
        60.0, description="time without a heartbeat of engine or event loop until /healthz fails"
    )
    max_engine_restarts: Count = Field(
        5,
        description="restarts of a crashed engine within ten minutes; one more crash ends the server; 0: the first one "
        "does",
    )
    max_body_bytes: Annotated[int, Field(ge=1), Flag("BYTES")] = Field(
        8 << 20, description="largest request body; larger ones get 413"
    )
    tenant_keys_file: FilePath = Field(
        "/etc/slipway/tenant/keys.json",
        description="keys by which gateways prove tenants, read again when it changes; without it none is honoured",
    )
    deployment: Annotated[str, Flag("NAMESPACE/NAME")] = Field(
        "", description="the ModelDeployment that these proofs must name"
    )
    trust_tenant_header: Switch = Field(
        False, description="accepts X-Slipway-Tenant without a proof, where only your own proxy reaches the server"
    )
    spans_endpoint: spans.Endpoint = Field(
        "", description="where spans of requests go; without one there are none; the SDK reads more variables"
    )
    spans_service: spans.Service = Field(
        "", description="name of this service in its spans; without one slipway-server"
    )

    @field_validator("served_model_name")
    @classmethod
    def _or_folder(cls, name: str, info: ValidationInfo) -> str:
        return name or (info.data["model"].resolve().name if "model" in info.data else "")

    @field_validator("ssl_ca_certs")
    @classmethod
    def _whole(cls, authorities: str, info: ValidationInfo) -> str:
        others = (info.data.get("ssl_certfile"), info.data.get("ssl_keyfile"))
        if len({bool(one) for one in (*others, authorities)}) > 1:
            raise ValueError("--ssl-certfile, --ssl-keyfile and --ssl-ca-certs belong together: set all or none")
        return authorities
