"""What a template has besides comparisons: providers (Prometheus, a URL, a Job), scorers of pairs, limits, vetoes."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from slipway_contracts.api.markers import AnyText, AtMost, CelRule, SchemaOf, rule
from slipway_contracts.api.types import ApiType, Int32, Int64, Time
from slipway_operator.api.inputs.job import JobSpec


class JobMetric(ApiType):
    """Job in the namespace of the ModelDeployment. The measurement is successful when the Job completes. The operator
    deletes the Job when the result is recorded."""

    spec: Annotated[dict[str, Any], SchemaOf(JobSpec)]


# Only the beginning of an address with arguments can be checked.
_URL = "self.matches('^(https?://[^ @/]+([/?][^ ]*)?|[{][{] *args[.][^ ]*.*)$')"


class FieldRef(ApiType):
    """Field of the ModelDeployment."""

    field_path: Literal["metadata.name", "metadata.namespace"]
    """Path of the field."""


@rule(
    "has(self.podTemplateHashValue) != has(self.fieldRef)",
    "valueFrom of an argument has either podTemplateHashValue or fieldRef: write one of them",
)
class ArgumentSource(ApiType):
    """Source of the value."""

    pod_template_hash_value: Literal["Stable", "Latest"] | None = None
    """Revision whose hash is the value: Stable is the stable revision, Latest the one under analysis."""
    field_ref: FieldRef | None = None


@rule(
    "has(self.value) != has(self.valueFrom)",
    "an argument of spec.args has either value or valueFrom: write one of them",
)
class TemplateArgument(ApiType):
    """Argument of the template."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9]([-_A-Za-z0-9]*[A-Za-z0-9])?$")]
    """Name of the argument, as in {{args.NAME}}."""
    value: Annotated[str, Field(max_length=1024)] | None = None
    """Value of the argument. Do not put secrets here: the status can show it."""
    value_from: ArgumentSource | None = None


class HeaderSecretKeyRef(ApiType):
    """Key of a Secret in the namespace of the template. The operator needs the permission to get the Secret."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253)]
    """Key in the Secret."""


class HeaderSource(ApiType):
    """Source of the whole value of the header."""

    secret_key_ref: HeaderSecretKeyRef


@rule("has(self.value) != has(self.valueFrom)", "a header has either value or valueFrom: write one of them")
class WebMetricHeader(ApiType):
    """Header of the request."""

    key: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9!#$%&*+.^_|~-]+$")]
    """Name of the header."""
    value: Annotated[str, Field(max_length=2048)] | None = None
    """Value of the header. Do not put secrets here."""
    value_from: HeaderSource | None = None


class PrometheusMetric(ApiType):
    """Instant query of Prometheus. The result is a list of numbers for a vector, and a number for a scalar. A matrix is
    an error."""

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
    """Base URL of Prometheus, without /api/v1/query."""
    query: Annotated[str, Field(min_length=1, max_length=4096)]
    """Query in PromQL."""
    headers: Annotated[tuple[WebMetricHeader, ...], Field(max_length=16)] = ()
    """Headers of the request."""
    timeout: Annotated[Int32, Field(ge=1, le=300)] = 30
    """Timeout of the request in seconds."""


@rule("!has(self.body) || self.method != 'GET'", "web.body goes with POST and PUT: write method: POST, or remove body")
class WebMetric(ApiType):
    """HTTP request with a JSON response. A status other than 2xx is an error. jsonPath selects the result."""

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
    """URL of the request. Redirects are not followed."""
    method: Literal["GET", "POST", "PUT"] = "GET"
    """HTTP method."""
    headers: Annotated[tuple[WebMetricHeader, ...], Field(max_length=16)] = ()
    """Headers of the request."""
    body: Annotated[str, Field(max_length=16384)] | None = None
    """Body of the request. Its content type is application/json unless a header sets another one."""
    json_path: Annotated[str, Field(max_length=512)] | None = None
    """JSONPath of the result in the response, for example {$.data[0].ok}. If omitted, the result is the whole
    response."""
    timeout_seconds: Annotated[Int32, Field(ge=1, le=300)] = 10
    """Timeout of the request in seconds."""
    insecure: bool | None = None
    """When true, the certificate of the server is not verified."""


@rule(
    "[has(self.prometheus), has(self.web), has(self.job)].filter(given, given).size() == 1",
    "a metric has exactly one provider of prometheus, web and job: write a metric for each",
)
class Provider(ApiType):
    """Provider of the measurements: exactly one of prometheus, web and job."""

    model_config = ConfigDict(extra="allow")  # so that an error can name an unknown provider

    prometheus: PrometheusMetric | None = None
    web: WebMetric | None = None
    job: JobMetric | None = None


class TemplateScorer(ApiType):
    """Server of yours that rates both responses of a pair, the one of the new revision and the one of its twin. It gets
    the prompt and both texts in one POST, in an order of chance, and returns {"scores": [0.8, 0.6]} between 0 and 1, or
    {"preference": 0}, 1 or "tie". Gateways call it, and only if their administrator listed its host
    (--scorer-hosts). Of a Tenant, only requests with contentCapture Scorers are given to it."""

    url: Annotated[
        str,
        Field(max_length=2048),
        CelRule(
            "self.matches('^https?://[^ @/]+([/?][^ ]*)?$')",
            (
                "url must be http:// or https:// with a host and without credentials: write for example "
                "http://quality.tools.svc/score"
            ),
        ),
    ]
    """URL of the calls. Redirects are not followed."""
    content: Literal["Send"]
    """Your consent that prompts and responses of clients are sent to this URL."""
    percentage: Annotated[Int32, Field(ge=1, le=100)] = 10
    """Percent of the pairs that are rated, chosen at random before they are sent."""
    margin: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Difference of two scores up to which neither response is worse, in steps of 0.001."""
    timeout_seconds: Annotated[Int32, Field(ge=1, le=60)] = 10
    """Timeout of a call in seconds."""


class TemplateTolerance(ApiType):
    """Difference of two numbers up to which they are the same prediction. One of the two is enough. Labels must be
    equal."""

    relative: Annotated[float, Field(ge=0, le=1)] = 0.001
    """Part of the larger number, in steps of 0.000001."""
    absolute: Annotated[float | None, Field(ge=0, le=1000)] = None
    """Difference, in steps of 0.000000001; without it 0.000001."""


class TemplateMinSamples(ApiType):
    """Data that a new revision needs before it can pass. None of it delays a rejection."""

    canary_requests: Annotated[Int32, Field(ge=1, le=100000000)] = 300
    """Minimum number of requests to the new revision, for each metric."""
    pairs: Annotated[Int32, Field(ge=1, le=100000000)] = 300
    """Minimum number of pairs of a twin shadow."""
    min_seconds: Annotated[Int32, Field(ge=0, le=86400)] = 0
    """Minimum time in seconds from the first request, or pair, until the new revision can pass."""
    warmup_seconds: Annotated[Int32, Field(ge=0, le=86400)] = 120
    """Duration of the warm-up in seconds, from the first request to the new revision. Latencies are not counted during
    the warm-up."""


class PromoteIf(ApiType):
    """What must be proved at the end of an analysis without a verdict, so that the rollout goes on."""

    max_extra: Annotated[float, Field(gt=0, le=500)]
    """Extra bad responses per 1,000, compared with stable: of the metric with maxExtra, at most as many must be
    proved."""


class TemplateVeto(ApiType):
    """Symptom that rejects the new revision at once."""

    name: Annotated[
        str,
        Field(max_length=63),
        CelRule(
            "self in ['PodCrashLoop', 'CanaryCutOff', 'CanaryUnavailable']",
            (
                "a veto is PodCrashLoop, CanaryCutOff or CanaryUnavailable in this release: SelfTestFailed and "
                "safetyFlagRate do not exist yet, and non-finite logits are a metric"
            ),
        ),
    ]
    """Name of the symptom. PodCrashLoop counts restarts of the revision's containers since the start of the analysis.
    CanaryCutOff counts gateways that stopped sending requests to the revision because most of them fail.
    CanaryUnavailable counts consecutive whole minutes without a ready pod through the revision's own fault. Pods that
    wait for a node, and new pods in place of those of a lost node, do not count."""
    limit: Annotated[Int32, Field(ge=1, le=1000)] = 1
    """Value of the symptom at which the new revision is rejected."""


class AnalysisPhase(StrEnum):
    """Phase of a measurement, and of a metric."""

    RUNNING = "Running"
    SUCCESSFUL = "Successful"
    FAILED = "Failed"
    INCONCLUSIVE = "Inconclusive"
    ERROR = "Error"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of one measurement."""

    at: Time
    """Time at which the operator recorded the measurement."""
    phase: Annotated[AnalysisPhase, AnyText()]
    """Successful, Failed, Inconclusive or Error."""
    value: str = ""
    """Value that the provider returned. For a string or an object, only its type and size are shown."""
    message: str = ""
    """Explanation of a phase other than Successful."""


@dataclass(frozen=True, slots=True)
class MetricRun:
    """Measurements of one metric with a provider."""

    name: str
    """Name of the metric."""
    phase: Annotated[AnalysisPhase, AnyText()] = AnalysisPhase.RUNNING
    """Running, Successful, Failed, Inconclusive or Error."""
    successful: Int64 = 0
    """Number of successful measurements."""
    failed: Int64 = 0
    """Number of failed measurements."""
    inconclusive: Int64 = 0
    """Number of inconclusive measurements."""
    error: Int64 = 0
    """Number of measurements that ended with an error."""
    consecutive_success: Int64 = 0
    """Number of successful measurements since the last one with another phase."""
    consecutive_error: Int64 = 0
    """Number of errors since the last measurement without an error."""
    measurements: Annotated[tuple[Measurement, ...], AtMost(10)] = ()
    """Most recent measurements, oldest first."""
    message: str = ""
    """Explanation of the phase."""

    @property
    def count(self) -> int:
        """Number of measurements without errors."""
        return self.successful + self.failed + self.inconclusive

    @property
    def taken(self) -> int:
        """Number of all measurements."""
        return self.count + self.error
