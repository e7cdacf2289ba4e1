"""Settings of the gateway: `--drain-timeout` is SLIPWAY_GATEWAY_DRAIN_TIMEOUT."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from slipway_process import spans
from slipway_process.network.addresses import parse_hosts
from slipway_process.settings import ProcessSettings
from slipway_process.values import (
    Address,
    Bytes,
    Count,
    FilePath,
    Flag,
    Name,
    Names,
    OnOff,
    Percentage,
    Port,
    PositiveCount,
    Seconds,
    Switch,
    Variable,
)

from .identity.authenticate import AUTH_MODES
from .wire.request_fields import SHARE_SOURCES, STICKY_SOURCES, TENANT_SOURCES


def _among(sources: Sequence[str]) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    def check(chosen: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := set(chosen) - set(sources):
            raise ValueError(f"unknown {', '.join(sorted(unknown))}; choose from {', '.join(sources)}")
        return chosen

    return check


def _one_of(values: Sequence[str]) -> Callable[[str], str]:
    def check(chosen: str) -> str:
        if chosen not in values:
            raise ValueError(f"unknown {chosen}; choose from {', '.join(values)}")
        return chosen

    return check


_ORIGIN = re.compile(r"\*|https?://[a-z0-9.\[\]:-]{1,260}")


def _origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(f"{origin[:100]!r} is no origin: write * or https://HOST, with :PORT and in small letters")
    return origins


def _log_target(target: str) -> str:
    if target not in ("off", "stdout") and "/" not in target:
        raise ValueError(
            f"{target[:100]!r} is neither off nor stdout, nor the path of a file: write ./NAME for one here"
        )
    return target


def _jobs_url(url: str) -> str:
    if url and (not url.startswith(("http://", "https://")) or url.endswith("/")):
        raise ValueError("must begin with http:// or https:// and end without a slash")
    return url


_REDIS_SCHEMES = ("redis://", "rediss://", "redis+sentinel://", "rediss+sentinel://", "unix://")


def _redis_url(url: SecretStr) -> SecretStr:
    text = url.get_secret_value()
    if text and not text.startswith(_REDIS_SCHEMES):
        raise ValueError(f"must begin with {', '.join(_REDIS_SCHEMES[:-1])} or {_REDIS_SCHEMES[-1]}")
    return url


def _checked_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    return parse_hosts(hosts)


class GatewaySettings(ProcessSettings):
    """Routes requests by model to ready revisions by weight and streams the responses."""

    model_config = SettingsConfigDict(
        cli_prog_name="slipway-gateway", env_prefix="SLIPWAY_GATEWAY_", env_ignore_empty=True
    )

    routes: FilePath = Field(
        "", description="routes file (YAML or JSON, reloaded when it changes) in place of a cluster"
    )
    kubeconfig: Annotated[FilePath, Variable("SLIPWAY_GATEWAY_KUBECONFIG", "KUBECONFIG")] = Field(
        "", description="kubeconfig file; without one the pod's service account, then ~/.kube/config"
    )
    namespaces: Names = Field((), description="namespaces to watch, all without a list")
    access_log: Annotated[str, AfterValidator(_log_target), Flag("off|stdout|FILE")] = Field(
        "off", description="where each request that ends has a line of JSON; a file has one gateway alone"
    )
    access_log_sample: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), Flag("SHARE")] = Field(
        1.0, description="share of successful requests that have a line there; all others have one"
    )
    access_log_max_bytes: Annotated[Bytes, Field(ge=64 << 10)] = Field(
        100 << 20, description="size from which the file of the access log is followed by the next one"
    )
    access_log_max_files: Annotated[PositiveCount, Field(le=100)] = Field(
        5, description="files of the access log that are kept, with the one that is written"
    )
    inference_log_url: Annotated[SecretStr, Flag("URL")] = Field(
        SecretStr(""),
        description="database of the inference log: postgresql://user:password@host/database or "
        "sqlite:////path/inferences.db; without one nothing is logged",
    )
    inference_log_max_content_bytes: Annotated[Bytes, Field(le=1 << 20)] = Field(
        64 << 10, description="longest input or output there; of a longer one its length alone is logged"
    )
    inference_log_retention_s: Annotated[Seconds, Field(gt=0)] = Field(
        30 * 86400.0, description="time after which rows of it are deleted"
    )
    generation_log_url: Annotated[SecretStr, Flag("URL")] = Field(
        SecretStr(""),
        description="database of the generation log: postgresql://user:password@host/database or "
        "sqlite:////path/generations.db; without one no prompts and responses are logged",
    )
    generation_log_keys_file: FilePath = Field(
        "",
        description='file with {"keys": [{"id": ..., "key": 32 bytes in base64}]} that prompts and responses are '
        "encrypted with there: the first one encrypts, each of them decrypts; without one they are not kept, and their "
        "lengths and hashes alone are logged",
    )
    generation_log_max_content_bytes: Annotated[Bytes, Field(le=1 << 20)] = Field(
        64 << 10, description="longest prompt or response there; of a longer one its length and hash alone are logged"
    )
    generation_log_retention_s: Annotated[Seconds, Field(gt=0)] = Field(
        30 * 86400.0, description="time after which rows of it are deleted"
    )
    generation_log_max_bytes: Annotated[Bytes, Field(ge=1 << 20)] = Field(
        10 << 30, description="size of all its rows; above it the oldest rows of the tenant with most are deleted"
    )
    exposure_log: Annotated[str, AfterValidator(_log_target), Flag("off|stdout|FILE")] = Field(
        "off",
        description="where each unit that comes to an arm of an Experiment has a line of JSON; a file is rotated "
        "as that of the access log, and has one gateway alone",
    )
    exposure_url: Annotated[str, Flag("URL")] = Field(
        "",
        description="URL that gets these lines by POST, as application/x-ndjson; its host is one of --exposure-hosts",
    )
    exposure_hosts: Annotated[Names, AfterValidator(_checked_hosts)] = Field(
        (), description="hosts that may get exposures, such as events.tools.svc or *.example.com"
    )
    exposure_token_file: Annotated[str, Flag("FILE")] = Field(
        "", description="file with the bearer token for --exposure-url; it is read before each call"
    )
    exposure_database_url: Annotated[SecretStr, Flag("URL")] = Field(
        SecretStr(""),
        description="database that keeps exposures: postgresql://user:password@host/database or "
        "sqlite:////path/exposures.db",
    )
    exposure_retention_s: Annotated[Seconds, Field(gt=0)] = Field(
        90 * 86400.0, description="time after which rows of it are deleted"
    )
    exposure_kafka_servers: Names = Field(
        (), description="Kafka servers, as HOST:PORT, that get exposures; it needs the package aiokafka"
    )
    exposure_kafka_topic: Name = Field("slipway-exposures", description="topic of Kafka that gets exposures")
    exposure_window_s: Annotated[Seconds, Field(ge=3600)] = Field(
        90 * 86400.0, description="time in which a unit is counted, and logged, once for an Experiment"
    )
    exposure_raw_units: bool = Field(False, description="log units as clients sent them, beside their keyed hashes")
    state_dir: Annotated[str, Flag("DIR")] = Field(
        "", description="folder that keeps the last table for a restart; without one it is not kept"
    )
    state_max_age_s: Seconds = Field(
        3600.0, description="maximum age of a kept table that is used while the API server does not respond"
    )
    own_namespace: Annotated[Name, Variable("SLIPWAY_GATEWAY_OWN_NAMESPACE", "POD_NAMESPACE")] = Field(
        "default", description="namespace of the operator, which keeps the owners of model names there"
    )
    names_configmap: Name = Field(
        "slipway-model-names", description="ConfigMap in the own namespace with the owners of model names"
    )
    host: Address = Field("", description="address of the API port; without one every interface")
    port: Port = Field(8000, description="port of the API")
    grpc_port: Port = Field(0, description="port of gRPC: the Open Inference Protocol and streams of tokens; 0: none")
    grpc_connection_age_s: Seconds = Field(
        30.0,
        gt=0,
        description="time after which a connection of gRPC gets GOAWAY, so that its client connects again while its "
        "calls go on; a drain waits for it",
    )
    tls_cert_file: FilePath = Field(
        "",
        description="certificate of the API port with its chain, in PEM, read again when it changes; without one HTTP",
    )
    tls_private_key_file: FilePath = Field("", description="private key of that certificate")
    tls_min_version: Literal["1.2", "1.3"] = Field("1.2", description="oldest version of TLS that clients may use")
    tls_client_ca_file: FilePath = Field(
        "", description="certificates by which clients must be signed; without them they need no certificate"
    )
    tls_client_auth: Literal["required", "optional"] = Field(
        "required",
        description="whether clients need such a certificate; optional: one that is sent must be valid",
    )
    internal_tls_dir: Annotated[str, Flag("DIR")] = Field(
        "",
        description="folder with tls.crt, tls.key and ca.crt, read again when they change: what this gateway shows to "
        "pods with TLS and to the operator, and the authorities of both; without one neither has TLS",
    )
    internal_port: Port = Field(
        8002, description="port of /internal/* by TLS, for the operator alone; with --internal-tls-dir"
    )
    admin_host: Address = Field("", description="address of the admin port; without one every interface")
    admin_port: Port = Field(
        8001, description="port of /healthz, /readyz, /metrics and /internal/routes; keep it private"
    )
    sticky_by: Annotated[Names, AfterValidator(_among(STICKY_SOURCES))] = Field(
        STICKY_SOURCES, description="what keeps requests at one revision: session, user, key"
    )
    allowed_origins: Annotated[Names, AfterValidator(_origins)] = Field(
        (),
        description="origins of web pages that may send requests, such as https://app.example.com, or * (CORS); "
        "without one browsers let no page of another origin do so",
    )
    tenant_by: Annotated[Names, AfterValidator(_among(TENANT_SOURCES))] = Field(
        TENANT_SOURCES, description="what identifies a tenant of the servers: key, user"
    )
    tenant_salt: Annotated[SecretStr, Flag("SECRET")] = Field(
        SecretStr(""), description="secret that hashes the names of tenants; the same at all gateways"
    )
    auth_mode: Annotated[str, AfterValidator(_one_of(AUTH_MODES))] = Field(
        "auto",
        description="whether requests need an API key of a Tenant: required, optional, off; auto: required as soon as "
        "there is a Tenant",
    )
    oidc_ca_file: FilePath = Field(
        "", description="certificates that issuers of tokens are verified by; without them the system's"
    )
    token_review_audience: Name = Field(
        "",
        description="audience that tokens of service accounts need, which the API server then reviews; without one "
        "they are no credentials",
    )
    key_pepper_file: FilePath = Field(
        "", description="file with the pepper that API keys are hashed with; without it no key is accepted"
    )
    priority_limit: Annotated[int, Flag("N")] = Field(
        0, description="most urgent `priority` that clients may set, lower is more urgent; -1000: any"
    )
    max_inflight: Count = Field(
        4096, description="concurrent requests, and as many whose body is still awaited; above either 429"
    )
    max_body_bytes: Bytes = Field(16 << 20, description="largest request body; above it 413")
    memory_budget_bytes: Bytes = Field(
        0,
        description="what bodies, whole responses, tokens of streams, replay buffers and mirrored requests may "
        "hold in total; above it 429; 0: 35 % of the container's memory limit, 256 MiB without a "
        "limit",
    )
    max_client_percentage: Percentage = Field(
        50,
        description="share of the memory budget, of --max-inflight and of gRPC's streams that one client may hold; "
        "above it 429; of the last two it has less where others hold some: at 50 as many as are free",
    )
    share_by: Annotated[Names, AfterValidator(_among(SHARE_SOURCES))] = Field(
        SHARE_SOURCES,
        description="what identifies a client of the memory budget: key, else address; address alone where "
        "clients may invent keys",
    )
    min_body_rate_bytes: Bytes = Field(
        1024, description="minimum rate of a request body, per second over any 10 s; below it 408; 0: any rate"
    )
    max_header_bytes: Bytes = Field(16384, description="largest header line; above it 431")
    header_timeout_s: Seconds = Field(15.0, description="time from the first byte of a request's head to its last")
    keepalive_timeout_s: Seconds = Field(
        75.0,
        description="time that a connection without a request stays open; set it longer than the load balancer's own",
    )
    max_connections: Count = Field(8192, description="concurrent connections of clients; above it 503")
    max_connections_per_address: Count = Field(
        0,
        description="concurrent connections of one address (with IPv6 of one /64); above it 429; 0: as many as are "
        "free, so half of all for an ingress in front",
    )
    max_attempts: Count = Field(3, description="endpoints that one request may be sent to before its first byte")
    max_resumes: Count = Field(
        3, description="servers that one stream may outlive; 0: a broken stream ends with an error event"
    )
    max_held: Count = Field(256, description="requests that may wait for an endpoint")
    hold_timeout_s: Seconds = Field(5.0, description="time that a request may wait for a ready endpoint before 503")
    wake_comment_s: Seconds = Field(
        5.0, description="time between comments in a stream that waits for a sleeping deployment; 0: none"
    )
    resume_timeout_s: Seconds = Field(
        30.0, description="time that a broken stream, or a request whose server died, may wait for another server"
    )
    remember_s: Seconds = Field(600.0, description="time that the tokens of a broken stream are kept for its client")
    max_remembered_bytes: Bytes = Field(
        64 << 20,
        description="size of all these tokens, and as much again of streams by WebSocket and gRPC with their requests; "
        "beyond it the oldest go",
    )
    cache_max_bytes: Bytes = Field(
        64 << 20,
        description="size of the responses that are kept for routes with a cache, and no more than a quarter of the "
        "memory budget, of which they are a part; 0: none is kept",
    )
    cache_max_response_bytes: Annotated[Bytes, Field(le=16 << 20)] = Field(
        1 << 20, description="largest response that is kept"
    )
    cache_redis_url: Annotated[SecretStr, AfterValidator(_redis_url), Flag("URL")] = Field(
        SecretStr(""),
        description="Redis or Valkey server where gateways keep responses together, with URLs as for --redis-url; not "
        "the same one: it should delete what was used least when it is full; without one each gateway keeps its own",
    )
    websocket_max_requests: Count = Field(
        32, description="requests that run on one connection of WebSocket; above it 429; 0: no WebSocket is served"
    )
    websocket_max_message_bytes: Annotated[Bytes, Field(ge=1024)] = Field(
        1 << 20, description="largest message of a WebSocket; above it the connection is closed with 1009"
    )
    websocket_messages_per_second: PositiveCount = Field(
        50, description="messages of one connection of WebSocket in a second; above it it is closed with 1008"
    )
    websocket_ping_interval_s: Seconds = Field(
        20.0,
        gt=0,
        description="silence after which a client of WebSocket gets a ping, and after as much again is gone",
    )
    websocket_idle_timeout_s: Seconds = Field(
        300.0, gt=0, description="time after which a WebSocket without a running request is closed with 1000"
    )
    connect_timeout_s: Seconds = Field(2.0, description="time to connect to an endpoint")
    warm_connections: Count = Field(
        2, description="connections kept open to each ready endpoint of a revision without weight; 0: none"
    )
    idle_timeout_s: Seconds = Field(600.0, description="time without a byte from the endpoint")
    request_timeout_s: Seconds = Field(3600.0, description="time of a whole request")
    body_timeout_s: Seconds = Field(60.0, description="time to receive a request body")
    stall_timeout_s: Seconds = Field(60.0, description="time that a client may leave its response unread")
    hung_after_s: Seconds = Field(
        60.0,
        description="silence of a stream's server that counts as an error for the judge, five times as long "
        "without streaming; 0: never",
    )
    mirror_max_inflight: Count = Field(16, description="concurrent mirrored requests; 0: nothing is mirrored")
    mirror_max_queue: Count = Field(64, description="mirrored requests that may wait; more are dropped")
    mirror_max_bytes: Bytes = Field(32 << 20, description="bodies and responses held for mirrored requests in total")
    mirror_max_body_bytes: Bytes = Field(256 << 10, description="largest request body that is mirrored")
    mirror_timeout_s: Seconds = Field(120.0, description="time for the response to a mirrored request")
    mirror_compare_percentage: Percentage = Field(
        25, description="share of mirrored requests, and of pairs of a twin shadow, whose responses are compared"
    )
    mirror_max_cpu_percentage: Percentage = Field(
        70,
        description="share of its processor that the gateway uses, above which no request is mirrored and no pair is "
        "sent; 100: whatever it uses",
    )
    twin_max_inflight: Count = Field(
        128, description="concurrent pairs of a twin shadow, which are two requests each; 0: there are none"
    )
    scorer_hosts: Annotated[Names, AfterValidator(_checked_hosts)] = Field(
        (),
        description="hosts that may get contents of requests and responses to score pairs of a twin shadow, where an "
        "AnalysisTemplate names one as its scorer, such as quality.tools.svc or *.example.com; without one no content "
        "leaves the gateway",
    )
    max_classifications: Count = Field(
        256, description="concurrent calls of classifiers for rules of ModelRoutes; above it they have their default"
    )
    external_hosts: Annotated[Names, AfterValidator(_checked_hosts)] = Field(
        (),
        description="hosts of other providers that may get requests of Tenants with spec.external, where a "
        "ModelDeployment or ModelRoute names one as fallback, such as api.openai.com or *.example.com; without one no "
        "request leaves the cluster",
    )
    external_ca_file: FilePath = Field(
        "", description="certificate authorities of these hosts, in PEM; without it those of the system"
    )
    external_timeout_s: Seconds = Field(
        60.0, description="time until the first byte of a provider's stream, or the end of another response"
    )
    external_max_inflight: Count = Field(64, description="concurrent calls of providers; 0: none is called")
    external_max_response_bytes: Bytes = Field(8 << 20, description="largest response of a provider, streams included")
    scorer_max_inflight: Count = Field(
        8, description="concurrent calls of scorers; above it pairs are not scored; 0: none is"
    )
    guard_hosts: Annotated[Names, AfterValidator(_checked_hosts)] = Field(
        (),
        description="hosts of webhooks that may get contents of requests and responses as guards, such as "
        "guard.tools.svc or *.example.com; without one no guard with a webhook decides",
    )
    guard_secrets_dir: Annotated[str, Flag("DIR")] = Field(
        "", description="folder with the Secrets whose keys guards send to their webhooks, each in a folder of its name"
    )
    guard_max_inflight: Annotated[PositiveCount, Field(le=65536)] = Field(
        256, description="concurrent calls of guards; above it, or a client's share of it, a guard fails"
    )
    guard_processes: Annotated[Count, Field(le=64)] = Field(
        2, description="processes that look for patterns and personal data of guards with builtin; 0: none"
    )
    consecutive_5xx: Count = Field(5, description="consecutive 5xx responses that eject an endpoint; 0: never")
    consecutive_gateway_failure: Count = Field(
        5, description="consecutive failed connections, resets, 502, 503 and 504 that eject an endpoint; 0: never"
    )
    base_ejection_time_s: Seconds = Field(
        10.0, description="time of an ejection, multiplied by the endpoint's consecutive ejections"
    )
    max_ejection_time_s: Seconds = Field(300.0, description="longest time of an ejection")
    max_ejection_percent: Percentage = Field(
        50, description="share of a revision's endpoints that may be ejected, never the last one; 0: none"
    )
    cut_off_failures: Count = Field(
        10, description="consecutive failed attempts that cut off a revision under test; 0: never"
    )
    cut_off_after_s: Seconds = Field(
        5.0, description="time that it must fail before the cut-off; a dead pod leaves the table sooner"
    )
    cut_off_cooldown_s: Seconds = Field(60.0, description="time until a revision that was cut off is tried again")
    failsafe_ttl_s: Seconds = Field(
        0.0,
        description="weights return to the stable revision when they are not renewed for this time; 0: never; the "
        "operator renews at least every 300 s",
    )
    ledger_url: Annotated[SecretStr, Flag("URL")] = Field(
        SecretStr(""),
        description="database of tenants' usage: sqlite:////path/ledger.db or postgresql://user:password@host/database "
        "(gateways share it); without one ledger.db in the state folder, and without that folder the memory",
    )
    redis_url: Annotated[SecretStr, AfterValidator(_redis_url), Flag("URL")] = Field(
        SecretStr(""),
        description="Redis or Valkey server where gateways count the limits of tenants together: "
        "redis://user:password@host:6379/0, rediss://… for TLS, or redis+sentinel://…@host,host/service; without one "
        "each gateway has its part of them",
    )
    redis_prefix: Name = Field("slipway", description="beginning of its keys; gateways with the same one share limits")
    redis_timeout_s: Seconds = Field(
        0.1,
        gt=0,
        description="longest wait for one answer of Redis; after it limits are divided until it answers again",
    )
    gateway_service: Name = Field(
        "",
        description="Service of the gateways in the own namespace, whose ready pods divide what they do not share; "
        "without one a gateway counts as the only one",
    )
    operator_token_file: FilePath = Field(
        "",
        description="file with the operator's token, which may renew the time of the failsafe; without it every "
        "caller may",
    )
    tenant_keys_file: FilePath = Field(
        "", description="file with the keys that prove tenants to servers; without it nothing is proved"
    )
    feedback_max_age_s: Seconds = Field(
        7 * 86400.0,
        description="age of a response up to which feedback on it counts, if its weights are still compared",
    )
    jobs_url: Annotated[str, AfterValidator(_jobs_url), Flag("URL")] = Field(
        "", description="base URL of the jobs process, for files and batches; without one there are none"
    )
    conversations: OnOff = Field(
        False,
        description="on: responses and conversations are stored by the jobs process, which needs the same flag; needs "
        "--jobs-url",
    )
    batch_slots: PositiveCount = Field(
        4,
        description="requests in flight at one endpoint, from this gateway, up to which those of batches are sent; "
        "above it they wait",
    )
    spans_endpoint: spans.Endpoint = Field(
        "", description="OTLP receiver of spans of requests; without one there are none; the SDK reads more variables"
    )
    spans_service: spans.Service = Field(
        "", description="name of this service in its spans; without one slipway-gateway"
    )
    trace_sample: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), Flag("SHARE")] = Field(
        0.01, description="share of requests whose spans are recorded, 0 to 1"
    )
    trace_per_second: Annotated[PositiveCount, Flag("N")] = Field(
        10, description="requests a second that are recorded by that share at most, in each lane"
    )
    trace_parents: Annotated[float, Field(ge=0, allow_inf_nan=False), Flag("N")] = Field(
        10.0,
        description="requests a second that are recorded besides, because the traceparent of their client says so",
    )
    plane: Literal["auto", "off", "required"] = Field(
        "auto",
        description="whether the compiled data plane accepts the connections of the API port, and serves plain "
        "requests by itself; auto: where it is installed; required: the gateway does not start without it",
    )
    plane_max_body_bytes: Annotated[Bytes, Field(le=1 << 20)] = Field(
        64 << 10, description="largest request body that the data plane serves by itself; 0: Python serves all"
    )
    drain_delay_s: Seconds = Field(5.0, description="time after SIGTERM in which new requests are still served")
    drain_timeout_s: Seconds = Field(600.0, description="time after that for running requests")
    allow_pure_python: Switch = Field(False, description="start without aiohttp's C extensions")
