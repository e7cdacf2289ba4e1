"""Settings of the jobs process: `--database-url` is SLIPWAY_JOBS_DATABASE_URL."""

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from slipway_process import spans
from slipway_process.network.addresses import parse_hosts
from slipway_process.settings import ProcessSettings
from slipway_process.values import Address, Bytes, Count, FilePath, Flag, Names, OnOff, Port, PositiveCount, Seconds


def _http_url(url: str) -> str:
    if not url.startswith(("http://", "https://")) or url.endswith("/"):
        raise ValueError("must begin with http:// or https:// and end without a slash")
    return url


def _https_url(url: str) -> str:
    if url and (not url.startswith("https://") or url.endswith("/")):
        raise ValueError("must begin with https:// and end without a slash: users' tokens are sent to it")
    return url


def _webhook_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    return parse_hosts(hosts)


class JobsSettings(ProcessSettings):
    """Keeps files and batches of requests, and sends them through the gateway as their tenants when there is room."""

    model_config = SettingsConfigDict(cli_prog_name="slipway-jobs", env_prefix="SLIPWAY_JOBS_", env_ignore_empty=True)

    host: Address = Field("", description="address of the port for gateways; without one every interface")
    port: Port = Field(8010, description="port for gateways, which name the tenant with a signature")
    admin_host: Address = Field("", description="address of the admin port; without one every interface")
    admin_port: Port = Field(8011, description="port of /healthz, /readyz and /metrics")
    gateway_url: Annotated[str, AfterValidator(_http_url), Flag("URL")] = Field(
        description="base URL of the gateways' API, without /v1"
    )
    gateway_ca_file: FilePath = Field(
        "", description="certificates that the gateway is verified by with https://; without them the system's"
    )
    keys_file: FilePath = Field(description="file with the release's keys, the same as the gateway's")
    viewers_api_server: Annotated[str, AfterValidator(_https_url), Flag("URL")] = Field(
        "",
        description="API server that says, by their own token, which users of the console may see states and counts "
        "of batches; without one no one may",
    )
    viewers_api_server_ca_file: FilePath = Field(
        "", description="certificates that this API server is verified by; without them the system's"
    )
    database_url: Annotated[SecretStr, Flag("URL")] = Field(
        description="database of files and batches: sqlite:////path/jobs.db (one process) or "
        "postgresql://user:password@host/database (several share it)"
    )
    spans_endpoint: spans.Endpoint = Field(
        "",
        description="OTLP receiver of spans of requests to the gateway; without one there are none; the SDK reads "
        "more variables",
    )
    spans_service: spans.Service = Field("", description="name of this service in its spans; without one slipway-jobs")
    max_database_bytes: Annotated[Bytes, Field(ge=16 << 20)] = Field(
        4 << 30, description="size of SQLite's file; a full one takes no more files"
    )
    max_file_bytes: Annotated[Bytes, Field(ge=1)] = Field(200 << 20, description="largest file; above it 413")
    max_lines: PositiveCount = Field(50_000, description="requests in one file")
    max_line_bytes: Annotated[Bytes, Field(ge=1024)] = Field(4 << 20, description="longest line of a file")
    max_response_bytes: Annotated[Bytes, Field(ge=1024)] = Field(
        4 << 20, description="longest response that is kept; a longer one makes its line an error"
    )
    max_tenant_bytes: Bytes = Field(1 << 30, description="size of all files that one tenant may have uploaded")
    max_tenant_result_bytes: Annotated[Bytes, Field(ge=1)] = Field(
        1 << 30, description="size of all batches and results of one tenant; above it 413, and its lines wait"
    )
    max_tenant_batches: PositiveCount = Field(
        100, description="batches of one tenant that have not ended; above it 429"
    )
    max_concurrency: PositiveCount = Field(
        32, description="requests in flight at the gateway; the last quarter is for tenants that have none in flight"
    )
    max_attempts: PositiveCount = Field(
        3,
        description="times that a request may break (500, 502, 504, a lost connection), or end this process "
        "while it is alone in flight, before it is an error",
    )
    request_timeout_s: Seconds = Field(600.0, gt=0, description="time of one request")
    lease_s: Annotated[Seconds, Field(ge=1)] = Field(
        30.0, description="time after which the requests of a process that died go to another one"
    )
    completion_window_s: Annotated[Seconds, Field(gt=0)] = Field(
        86_400.0, description="time that the completion window of 24h stands for; later a batch expires"
    )
    retention_s: Annotated[Seconds, Field(ge=60)] = Field(
        2_592_000.0, description="time after which a file, and a batch that has ended, is deleted"
    )
    conversations: OnOff = Field(
        False, description="on: keep responses and conversations, for gateways with the same flag"
    )
    max_tenant_conversations: PositiveCount = Field(
        100_000, description="conversations, and chains of responses, of one tenant; above it nothing more is stored"
    )
    max_tenant_items: PositiveCount = Field(2_000_000, description="items of all conversations of one tenant")
    max_tenant_conversation_bytes: Annotated[Bytes, Field(ge=1)] = Field(
        1 << 30, description="size of all conversations of one tenant"
    )
    max_conversation_items: PositiveCount = Field(10_000, description="items of one conversation")
    max_context_bytes: Annotated[Bytes, Field(ge=1024)] = Field(
        4 << 20, description="size of the earlier items that a request may continue; above it 400, or truncation"
    )
    conversation_retention_s: Annotated[Seconds, Field(ge=60)] = Field(
        31_536_000.0, description="time after which a conversation is deleted, however often it is used"
    )
    conversation_idle_s: Annotated[Seconds, Field(ge=60)] = Field(
        2_592_000.0, description="time after its last turn or change after which a conversation is deleted"
    )
    sealing_keys_file: FilePath = Field(
        "",
        description='file with {"keys": [{"id": ..., "key": 32 bytes in base64}]} that contents are encrypted with '
        "in the database: the first one encrypts, each of them decrypts; without one they are plain",
    )
    object_stores_file: FilePath = Field(
        "",
        description="file with the buckets, endpoints and credentials by which batches of each tenant may read input "
        "files from S3; without one they may not",
    )
    webhook_hosts: Annotated[Names, AfterValidator(_webhook_hosts)] = Field(
        (),
        description="hosts that a callback_url may name, such as hooks.tools.svc or *.example.com; "
        "without one there are no webhooks",
    )
    webhook_secret: Annotated[SecretStr, Flag("SECRET")] = Field(
        SecretStr(""),
        description="whsec_ and 24 to 64 bytes in base64, which the secrets of tenants are derived from; a second one "
        "behind a comma signs too, while it is rotated",
    )
    max_tenant_webhooks: PositiveCount = Field(
        1000, description="webhooks of one tenant that are not delivered; above it 429"
    )
    max_tenant_idempotency_keys: PositiveCount = Field(
        20_000, description="Idempotency-Keys of one tenant that are kept; above it 429 for requests with a new one"
    )
    idempotency_key_retention_s: Annotated[Seconds, Field(ge=1)] = Field(
        86_400.0, description="time for which a request with the same Idempotency-Key gets the same answer"
    )
    max_uploads: Count = Field(
        16, description="files that are received at once, above it 429; the last quarter is for tenants that send none"
    )
    drain_delay_s: Seconds = Field(
        0.0,
        description="time after SIGTERM in which requests are still served, and no line is sent: until gateways have "
        "noticed",
    )
    drain_timeout_s: Seconds = Field(60.0, description="time after that for requests in flight; others take the rest")
