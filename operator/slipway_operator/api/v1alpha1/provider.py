"""The provider of a metric: Prometheus, a URL or a Job with a closed pod spec; and the arguments of its query."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from slipway_operator.api.markers import CelRule, SchemaOf, preserve_unknown_fields, rule
from slipway_operator.api.types import ApiType, Int32, Int64


@preserve_unknown_fields
class Volume(ApiType):
    """One volume."""

    host_path: dict[str, Any] | None = None
    """Not allowed."""
    secret: dict[str, Any] | None = None
    """Not allowed."""
    projected: dict[str, Any] | None = None
    """Not allowed."""
    csi: dict[str, Any] | None = None
    """Not allowed."""
    persistent_volume_claim: dict[str, Any] | None = None
    """Not allowed."""


@preserve_unknown_fields
class SecurityContext(ApiType):
    """Only what narrows."""

    privileged: bool | None = None
    """Must not be true."""
    allow_privilege_escalation: bool | None = None
    """Must not be true."""


@preserve_unknown_fields
class Container(ApiType):
    """One container, with the fields that docs/judge.md lists."""

    security_context: SecurityContext | None = None


@rule(
    (
        "!(has(self.hostNetwork) && self.hostNetwork) && !(has(self.hostPID) && self.hostPID) && "
        "!(has(self.hostIPC) && self.hostIPC)"
    ),
    "an analysis Job shares nothing with its node: remove hostNetwork, hostPID and hostIPC",
)
@rule(
    "!has(self.serviceAccountName) || self.serviceAccountName == 'default'",
    "an analysis Job runs under the service account default, without its token: remove serviceAccountName",
)
@rule(
    "!has(self.automountServiceAccountToken) || !self.automountServiceAccountToken",
    "an analysis Job gets no API token: remove automountServiceAccountToken",
)
@rule(
    (
        "!has(self.volumes) || self.volumes.all(v, !has(v.hostPath) && !has(v.secret) && !has(v.projected) && "
        "!has(v.csi) && !has(v.persistentVolumeClaim))"
    ),
    ("volumes of an analysis Job are emptyDir and configMap: take a Secret by env, and write other data with the Job"),
)
@rule(
    (
        "self.containers.all(c, !has(c.securityContext) || (!(has(c.securityContext.privileged) && "
        "c.securityContext.privileged) && !(has(c.securityContext.allowPrivilegeEscalation) && "
        "c.securityContext.allowPrivilegeEscalation)))"
    ),
    "containers of an analysis Job have no privileges: remove privileged and allowPrivilegeEscalation",
)
@preserve_unknown_fields
class PodSpec(ApiType):
    """The closed part of a PodSpec."""

    host_network: bool | None = None
    """Must not be true."""
    host_pid: Annotated[bool | None, Field(alias="hostPID")] = None
    """Must not be true."""
    host_ipc: Annotated[bool | None, Field(alias="hostIPC")] = None
    """Must not be true."""
    service_account_name: Annotated[str, Field(max_length=253)] | None = None
    """Only default."""
    automount_service_account_token: bool | None = None
    """Must not be true."""
    volumes: Annotated[tuple[Volume, ...], Field(max_length=16)] = ()
    """Volumes, emptyDir or configMap."""
    containers: Annotated[tuple[Container, ...], Field(min_length=1, max_length=4)]
    """Its containers."""


@preserve_unknown_fields
class PodTemplate(ApiType):
    """Its pods. They carry no labels of yours."""

    spec: PodSpec


@preserve_unknown_fields
class JobSpec(ApiType):
    """The part of a batch/v1 JobSpec that docs/judge.md lists; a field beyond it makes the template invalid, by
    name. Pods run as Pod Security "restricted" wants it, without an API token, with limits."""

    template: PodTemplate
    active_deadline_seconds: Annotated[Int64, Field(ge=1, le=86400)] | None = None
    """How long it may run, 3600 without it."""
    backoff_limit: Annotated[Int32, Field(ge=0, le=6)] | None = None
    """How often a pod that failed is tried again, 6 without it."""
    ttl_seconds_after_finished: Annotated[Int32, Field(ge=60, le=86400)] | None = None
    """When it goes by itself, if nobody could delete it; 3600 without it. Until then its result can be read."""


class JobMetric(ApiType):
    """A Job in the namespace of the ModelDeployment; it is good when it succeeds. It is deleted when that is noted."""

    spec: Annotated[dict[str, Any], SchemaOf(JobSpec)]


# Of an address with arguments only its beginning can be known.
_URL = "self.matches('^(https?://[^ @/]+([/?][^ ]*)?|[{][{] *args[.][^ ]*.*)$')"


class FieldRef(ApiType):
    """A field of the ModelDeployment."""

    field_path: Literal["metadata.name", "metadata.namespace"]
    """Which one."""


@rule(
    "has(self.podTemplateHashValue) != has(self.fieldRef)",
    "valueFrom of an argument has either podTemplateHashValue or fieldRef: write one of them",
)
class ArgumentSource(ApiType):
    """Where its value comes from."""

    pod_template_hash_value: Literal["Stable", "Latest"] | None = None
    """The stable revision, or the one that is analysed."""
    field_ref: FieldRef | None = None


@rule(
    "has(self.value) != has(self.valueFrom)",
    "an argument of spec.args has either value or valueFrom: write one of them",
)
class TemplateArgument(ApiType):
    """One argument."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9]([-_A-Za-z0-9]*[A-Za-z0-9])?$")]
    """Its name between the braces."""
    value: Annotated[str, Field(max_length=1024)] | None = None
    """Its value. Not for secrets, which the status could show."""
    value_from: ArgumentSource | None = None


class HeaderSecretKeyRef(ApiType):
    """A key of a Secret in the namespace of the template; the operator must be allowed to get it."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253)]
    """Key in it."""


class HeaderSource(ApiType):
    """Where its whole value comes from."""

    secret_key_ref: HeaderSecretKeyRef


@rule("has(self.value) != has(self.valueFrom)", "a header has either value or valueFrom: write one of them")
class WebMetricHeader(ApiType):
    """One header."""

    key: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9!#$%&*+.^_|~-]+$")]
    """Its name."""
    value: Annotated[str, Field(max_length=2048)] | None = None
    """Its value. Not for secrets."""
    value_from: HeaderSource | None = None


class PrometheusMetric(ApiType):
    """An instant query. The result is a list of numbers for a vector, a number for a scalar; a matrix is an error."""

    address: Annotated[
        str,
        Field(max_length=2048),
        CelRule(
            _URL,
            (
                "address must be http:// or https:// with a host and without credentials: write for example "
                "http://prometheus.monitoring.svc:9090"
            ),
        ),
    ]
    """Where Prometheus is, up to and without /api/v1/query."""
    query: Annotated[str, Field(min_length=1, max_length=4096)]
    """The query in PromQL."""
    headers: Annotated[tuple[WebMetricHeader, ...], Field(max_length=16)] = ()
    """Headers of the request."""
    timeout: Annotated[Int32, Field(ge=1, le=300)] = 30
    """How many seconds it may take."""


@rule("!has(self.body) || self.method != 'GET'", "web.body goes with POST and PUT: write method: POST, or remove body")
class WebMetric(ApiType):
    """A request whose answer is 2xx with JSON. The result is what jsonPath picks of it."""

    url: Annotated[
        str,
        Field(max_length=2048),
        CelRule(
            _URL,
            (
                "url must be http:// or https:// with a host and without credentials: write for example "
                "http://quality.tools.svc/score"
            ),
        ),
    ]
    """What is asked. Redirects are not followed."""
    method: Literal["GET", "POST", "PUT"] = "GET"
    """How."""
    headers: Annotated[tuple[WebMetricHeader, ...], Field(max_length=16)] = ()
    """Headers of the request."""
    body: Annotated[str, Field(max_length=16384)] | None = None
    """What is sent; as application/json where no header says otherwise."""
    json_path: Annotated[str, Field(max_length=512)] | None = None
    """Which part of the answer is the result, for example {$.data[0].ok}. Without it all of it is."""
    timeout_seconds: Annotated[Int32, Field(ge=1, le=300)] = 10
    """How long it may take."""
    insecure: bool | None = None
    """Take any certificate."""


@rule(
    "[has(self.prometheus), has(self.web), has(self.job)].filter(given, given).size() == 1",
    "a metric has exactly one provider of prometheus, web and job: write a metric for each",
)
class Provider(ApiType):
    """Who is asked for a measurement."""

    model_config = ConfigDict(extra="allow")  # to name a provider that there is not

    prometheus: PrometheusMetric | None = None
    web: WebMetric | None = None
    job: JobMetric | None = None
