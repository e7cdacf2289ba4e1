"""Settings of the fetcher. Only flags set what it downloads and from where: users control the variables of pods."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from slipway_process.settings import ProcessSettings
from slipway_process.termination import Parser
from slipway_process.values import Bytes, Flag, Folder, LogLevel, Names, OptionalFile, Port, Switch, Variable

from .guard import ALLOW_NETWORKS
from .hub import ENDPOINT
from .mlflow import TrackingAccess
from .objects.access import IDENTITY, SECRETS, StoreAccess

SCHEMES = "file://, pvc://, hf://, https://, s3://, gs://, az://, oci:// and mlflow-artifacts://"
Secret = Annotated[SecretStr, AfterValidator(lambda text: SecretStr(text.get_secret_value().strip())), Flag("")]
_WEB_IDENTITY = "of the pod's own identity, as its platform injects it"


class FetcherSettings(ProcessSettings):
    """Brings a model folder to the pod, checks it, and writes a marker when it is whole."""

    model_config = SettingsConfigDict(cli_prog_name="slipway-fetcher", env_ignore_empty=True)
    parser = Parser

    log_level: Annotated[LogLevel, Flag(""), Variable("SLIPWAY_LOG_LEVEL")] = Field(
        "info", description="lowest level that the log has"
    )
    uri: Annotated[str, Variable(), Flag("URI")] = Field(description=f"where the model is: {SCHEMES}")
    revision: Annotated[str, Variable(), Flag("REVISION")] = Field(
        "",
        description="hf: branch, tag or commit; https: sha256:DIGEST of the archive or the manifest; file and pvc: "
        "sha256:DIGEST of the folder, as the marker has it; s3, gs, az and mlflow-artifacts: the same",
    )
    dest: Annotated[Folder, Variable()] = Field(description="folder for the marker and downloads")
    any_engine: Annotated[Switch, Variable()] = Field(
        False,
        description="for another engine than slipway-server: takes GGUF and ONNX files too, requires no config.json, "
        "and links `current` in --dest to the folder of the model",
    )
    format: Annotated[
        Literal["", "auto", "onnx", "xgboost", "lightgbm", "skops", "transformers", "peft"], Variable(), Flag("FORMAT")
    ] = Field(
        "",
        description="for a classic model: takes the files of these formats, and requires one of them; peft: takes the "
        "two files of a LoRA adapter alone, and copies those of file: and pvc: into --dest",
    )
    cache_dir: Annotated[OptionalFile, Variable(), Flag("DIR")] = Field(
        None, description="folder with models that outlives the pod: what is there is not downloaded"
    )
    cache_scope: Annotated[str, Variable(), Flag("NAME")] = Field(
        "", description="the revision, all pods of which load what the first of them took into the cache"
    )
    cache_pod: Annotated[str, Variable(), Flag("UID")] = Field(
        "", description="uid of the pod, whose container `lease` keeps the model in the cache"
    )
    max_bytes: Annotated[Bytes, Variable()] = Field(1 << 40, description="largest total size of the files")
    max_bytes_of: Annotated[OptionalFile, Variable(), Flag("DIR")] = Field(
        None, description="folder with --dest in it, whose other files count towards --max-bytes: of another model"
    )
    pin_file: Annotated[OptionalFile, Variable("SLIPWAY_PIN_FILE")] = Field(
        None, description="commit and digest that the model must have, where the file exists"
    )
    progress_port: Annotated[Port, Variable("SLIPWAY_PROGRESS_PORT")] = Field(
        0, description="port that serves /metrics with the progress of the download while it lasts; 0: none"
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
    hub_token: Annotated[Secret, Variable("HF_TOKEN")] = Field(
        SecretStr(""), description="token of the hub, sent only to it; in a cluster from spec.model.secretRef"
    )
    registry_config: Annotated[Secret, Variable("DOCKER_AUTH_CONFIG")] = Field(
        SecretStr(""),
        description="credentials of registries, as .dockerconfigjson has them; from spec.model.secretRef too",
    )
    endpoint: Annotated[str, Variable(), Flag("URL")] = Field(
        "",
        description="an S3-compatible store in place of the cloud's own, or another endpoint of gs and az; of "
        "mlflow-artifacts the tracking server",
    )
    region: Annotated[str, Variable(), Flag("REGION")] = Field("", description="of an s3 bucket; us-east-1 without it")
    account: Annotated[str, Variable(), Flag("NAME")] = Field("", description="storage account of an az container")
    mlflow_tracking_token: Annotated[Secret, Variable("MLFLOW_TRACKING_TOKEN")] = Field(
        SecretStr(""), description="token of the tracking server, sent only to it; from spec.model.secretRef too"
    )
    mlflow_tracking_username: Annotated[Secret, Variable("MLFLOW_TRACKING_USERNAME")] = Field(
        SecretStr(""), description="user of the tracking server, in place of a token"
    )
    mlflow_tracking_password: Annotated[Secret, Variable("MLFLOW_TRACKING_PASSWORD")] = Field(
        SecretStr(""), description="password of this user"
    )
    aws_access_key_id: Annotated[Secret, Variable("AWS_ACCESS_KEY_ID")] = Field(
        SecretStr(""), description="key of an s3 store; this and the next six in a cluster from spec.model.secretRef"
    )
    aws_secret_access_key: Annotated[Secret, Variable("AWS_SECRET_ACCESS_KEY")] = Field(
        SecretStr(""), description="its secret part"
    )
    aws_session_token: Annotated[Secret, Variable("AWS_SESSION_TOKEN")] = Field(
        SecretStr(""), description="of a temporary key"
    )
    google_service_account_key: Annotated[Secret, Variable("GOOGLE_SERVICE_ACCOUNT_KEY")] = Field(
        SecretStr(""), description="JSON key of a service account, for gs"
    )
    azure_storage_account_name: Annotated[Secret, Variable("AZURE_STORAGE_ACCOUNT_NAME")] = Field(
        SecretStr(""), description="storage account, where --account is not given"
    )
    azure_storage_account_key: Annotated[Secret, Variable("AZURE_STORAGE_ACCOUNT_KEY")] = Field(
        SecretStr(""), description="key of the storage account"
    )
    azure_storage_sas_token: Annotated[Secret, Variable("AZURE_STORAGE_SAS_TOKEN")] = Field(
        SecretStr(""), description="shared access signature, in place of the key"
    )
    aws_web_identity_token_file: Annotated[str, Flag(""), Variable("AWS_WEB_IDENTITY_TOKEN_FILE")] = Field(
        "", description=f"token {_WEB_IDENTITY}, for s3"
    )
    aws_role_arn: Annotated[str, Flag(""), Variable("AWS_ROLE_ARN")] = Field("", description=f"role {_WEB_IDENTITY}")
    aws_role_session_name: Annotated[str, Flag(""), Variable("AWS_ROLE_SESSION_NAME")] = Field(
        "", description="name of the session with that role"
    )
    azure_federated_token_file: Annotated[str, Flag(""), Variable("AZURE_FEDERATED_TOKEN_FILE")] = Field(
        "", description=f"token {_WEB_IDENTITY}, for az"
    )
    azure_client_id: Annotated[str, Flag(""), Variable("AZURE_CLIENT_ID")] = Field(
        "", description=f"application {_WEB_IDENTITY}"
    )
    azure_tenant_id: Annotated[str, Flag(""), Variable("AZURE_TENANT_ID")] = Field(
        "", description=f"tenant {_WEB_IDENTITY}"
    )
    azure_authority_host: Annotated[str, Flag(""), Variable("AZURE_AUTHORITY_HOST")] = Field(
        "", description="one of Microsoft's own hosts that exchange the token"
    )

    def tracking_access(self) -> TrackingAccess:
        names = ("mlflow_tracking_token", "mlflow_tracking_username", "mlflow_tracking_password")
        return TrackingAccess(self.endpoint, *(getattr(self, name).get_secret_value() for name in names))

    def store_access(self) -> StoreAccess:
        names = (*(name for secrets in SECRETS.values() for name in secrets), *IDENTITY)
        values = {name: getattr(self, name.lower()) for name in names}
        variables = {
            name: value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            for name, value in values.items()
        }
        return StoreAccess(self.endpoint, self.region, self.account, variables)
