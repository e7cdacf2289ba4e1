"""ModelDeployment: a model behind an OpenAI-compatible endpoint, and the rollout of its new versions."""

from typing import Annotated, Literal

from pydantic import Field

from slipway_contracts.api.markers import (
    CelRule,
    Definition,
    ListMap,
    ListSet,
    PrinterColumn,
    ScaleSubresource,
    custom_resource,
    implied_defaults,
    rule,
)
from slipway_contracts.api.types import DURATION, ApiType, Duration, Int32, Time, duration_rule
from slipway_contracts.guards import Guards
from slipway_contracts.resilience import ExternalProvider
from slipway_operator.api.inputs.pod_inputs import InputsRecord
from slipway_operator.api.v1alpha1.accuracy import AccuracySpec
from slipway_operator.api.v1alpha1.autoscaling import AutoscalingSpec
from slipway_operator.api.v1alpha1.status import PatchedStatus
from slipway_operator.api.v1alpha1.strategy import RolloutStrategy


@implied_defaults()
class RunHistoryLimits(ApiType):
    """Number of former AnalysisRuns that are kept, as in Argo Rollouts. They are deleted when another one begins."""

    successful_run_history_limit: Annotated[Int32, Field(ge=0, le=100)] = 5
    """Number of former runs that passed."""
    unsuccessful_run_history_limit: Annotated[Int32, Field(ge=0, le=100)] = 5
    """Number of former runs that did not: those that failed, were inconclusive, or ended without a verdict."""


@implied_defaults()
class Drain(ApiType):
    """Termination of pods."""

    timeout_seconds: Annotated[Int32, Field(ge=1, le=86400)] = 600
    """Maximum time in seconds that a request in progress may continue when its pod or its revision terminates. A change
    applies to later revisions and restarts nothing."""


class InferenceLogSpec(ApiType):
    """Which requests of a classic model gateways write to the inference log, if their administrator gave them a
    database for it (--inference-log-url)."""

    percentage: Annotated[Int32, Field(ge=0, le=100)] = 100
    """Percent of the requests, chosen by chance."""
    contents: Literal["None", "Full"] = "None"
    """Full: inputs and outputs too, and not only predictions, times and sizes. Of requests of a Tenant only with
    contentCapture InferenceLog or All."""


class GenerationLogSpec(ApiType):
    """Which requests for text gateways write to the generation log, if their administrator gave them a database for it
    (--generation-log-url) and the Tenant of the request allows it (spec.generationLog). Of requests without a Tenant
    nothing is written. A change restarts nothing."""

    percentage: Annotated[Int32, Field(ge=0, le=100)] = 100
    """Percent of the requests, chosen by chance."""
    contents: Literal["None", "Full"] = "None"
    """Full: prompts and responses too, encrypted, and not only times, tokens, lengths and hashes. Only of requests of
    Tenants with generationLog Full."""


@implied_defaults()
class LoadBalancing(ApiType):
    """Choice of a pod among those of the revision that the weights gave a request."""

    policy: Literal["LeastLoad", "PrefixAffinity"] = "LeastLoad"
    """LeastLoad: the pod with the fewest requests in progress. PrefixAffinity: the pod that has seen most of the
    prompt's beginning, unless its waiting prompts cost more than computing that again elsewhere. It is for language
    models, whose engines keep a cache of prompts. A change restarts nothing."""


class FallbackTarget(ApiType):
    """ModelDeployment of the same namespace, or API of another provider, that answers in place of this one."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the ModelDeployment, not this one. With external, the name by which headers, metrics and prices have the
    provider."""
    external: ExternalProvider | None = None


@implied_defaults()
class CircuitBreakerSpec(ApiType):
    """When gateways send no more requests to this ModelDeployment for a while. Each gateway decides by its own
    requests. What is not sent goes to a fallback, or gets 503. Names are those of Istio's outlierDetection. A change
    restarts nothing."""

    consecutive_5xx_errors: Annotated[Int32, Field(ge=1, le=10_000)] = 20
    """Requests in a row that failed: after all attempts there was no response, none in firstByteTimeoutSeconds, or one
    with 500 to 599 that is not 503."""
    base_ejection_time: Annotated[
        Duration,
        duration_rule("traffic.circuitBreaker.baseEjectionTime", "10s, 1m or 1h"),
        CelRule(
            f"!{DURATION} || (duration(self) >= duration('1s') && duration(self) <= duration('1h'))",
            "traffic.circuitBreaker.baseEjectionTime is from 1s to 1h",
        ),
    ] = "10s"
    """Time without requests, multiplied by the times in a row that the breaker opened. Then it is half open: one
    request at a time is sent, and the first that succeeds closes it."""


@implied_defaults()
class RetryBudgetSpec(ApiType):
    """How many retries and fallbacks each gateway may have in progress for this ModelDeployment, so that they do not
    multiply its load. Names and defaults are those of Envoy's retry_budget. A change restarts nothing."""

    budget_percent: Annotated[Int32, Field(ge=0, le=100)] = 20
    """Percent of the requests in progress. Resumes of streams that broke do not count."""
    min_retry_concurrency: Annotated[Int32, Field(ge=0, le=10_000)] = 3
    """Retries in progress that are allowed whatever the percentage gives."""


@rule(
    "has(self.name) || has(self.maxTokens) || (has(self.singleChoice) && self.singleChoice)",
    "traffic.degradation takes nothing away: write name, maxTokens or singleChoice, or remove it",
)
class DegradationSpec(ApiType):
    """What requests for text get less of while this ModelDeployment is overloaded: while its pods refuse requests with
    429 or 503 after all attempts. First name answers what is refused; if refusals go on for a second, maxTokens is a
    cap, and after another second n is 1. Each step ends after 10 seconds without such a refusal. Responses have the
    header X-Slipway-Degraded. A change restarts nothing."""

    name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Name of a smaller ModelDeployment of the namespace, which answers what the pods refuse, before fallback."""
    max_tokens: Annotated[Int32, Field(ge=1, le=10_000_000)] | None = None
    """Greatest limit of the tokens of a response."""
    single_choice: bool = False
    """Whether requests for several responses to a prompt get one."""


@implied_defaults()
class ResponseCacheSpec(ApiType):
    """Responses that gateways keep, and answer equal requests to the same revision with. Requests that sample without a
    seed are always computed. A change restarts nothing. See docs/caches.md."""

    mode: Literal["Exact"]
    """Exact: requests are equal if they have the same fields, apart from those that cannot change a response."""
    ttl: Annotated[
        Duration,
        duration_rule("traffic.cache.ttl", "10m, 1h or 24h"),
        CelRule(
            f"!{DURATION} || (duration(self) >= duration('1s') && duration(self) <= duration('720h'))",
            "traffic.cache.ttl is from 1s to 720h: remove traffic.cache for no cache",
        ),
    ] = "1h"
    """Time for which a response is kept, at most 720h. A rollback within it brings the entries of its revision back."""
    shared: bool = False
    """Whether a tenant gets responses to requests of other tenants. The time of a response then shows a tenant whether
    the same request was sent before."""


class TrafficSpec(ApiType):
    """How gateways forward requests."""

    forward_headers: Annotated[
        tuple[
            Annotated[
                Literal["authorization", "cookie", "api-key", "x-api-key"],
                Field(description="Name of the header in lower case."),
            ],
            ...,
        ],
        Field(max_length=4),
        ListSet(),
    ] = ()
    """Headers with client credentials that gateways forward to the pods. Default is none, because whoever runs the pods
    could use the credentials. With cookie, clients also get the cookies that pods set. A change restarts nothing."""
    inference_log: InferenceLogSpec | None = None
    generation_log: GenerationLogSpec | None = None
    load_balancing: LoadBalancing | None = None
    fallback: Annotated[tuple[FallbackTarget, ...], Field(max_length=4), ListMap("name")] = ()
    """What answers requests for text in place of this ModelDeployment, in this order: when it has no ready pod, when
    all attempts failed, when its pods are too busy, and when a prompt is longer than its context. Never after the first
    byte. Their own fallback is not used, and at most one external provider. A change restarts nothing."""
    first_byte_timeout_seconds: Annotated[Int32, Field(ge=1, le=3600)] | None = None
    """Time in seconds after which a request without a first byte goes to a fallback. The first byte of a response that
    is no stream comes with its end. Without it a pod that hangs keeps its requests."""
    cache: ResponseCacheSpec | None = None
    circuit_breaker: CircuitBreakerSpec | None = None
    retry_budget: RetryBudgetSpec | None = None
    degradation: DegradationSpec | None = None
    guards: Guards = ()
    """Checks of requests before the model, and of responses before the client. A change restarts nothing. See
    docs/guards.md."""


_LIMIT = "self.matches('^[1-9][0-9]{0,6}(ms|s)$')"


@rule(
    "has(self.ttftP95) || has(self.itlP95) || has(self.latencyP99) || has(self.availability)",
    "spec.slo has no objective: write ttftP95, itlP95, latencyP99 or availability, or remove spec.slo",
)
@implied_defaults()
class ServiceLevelObjectives(ApiType):
    """Objectives of the service that clients get. Gateways count every request against them, and the operator computes
    the error budget. Absent objectives are not counted. A change restarts nothing."""

    ttft_p95: (
        Annotated[
            str,
            Field(max_length=9),
            CelRule(_LIMIT, "slo.ttftP95 is written in milliseconds or seconds: write for example 800ms or 2s"),
        ]
        | None
    ) = None
    """Time within which 95 % of the streams have their first byte at the gateway, for example 800ms."""
    itl_p95: (
        Annotated[
            str,
            Field(max_length=9),
            CelRule(_LIMIT, "slo.itlP95 is written in milliseconds or seconds: write for example 60ms"),
        ]
        | None
    ) = None
    """Mean time between two events within which 95 % of the streams stay, for example 60ms."""
    latency_p99: (
        Annotated[
            str,
            Field(max_length=9),
            CelRule(_LIMIT, "slo.latencyP99 is written in milliseconds or seconds: write for example 500ms or 2s"),
        ]
        | None
    ) = None
    """Time within which 99 % of the responses are complete, for example 2s."""
    availability: (
        Annotated[
            str,
            Field(max_length=6),
            CelRule(
                "self.matches('^[1-9][0-9]([.][0-9]{1,3})?$')",
                'slo.availability is a percentage from 10 to 99.999, as a string: write for example "99.9"',
            ),
        ]
        | None
    ) = None
    """Percent of the requests that do not fail, as a string, for example "99.9"."""
    window: Annotated[
        str,
        Field(max_length=4),
        CelRule(
            "self.matches('^([1-9]|[1-8][0-9]|90)d$')",
            "slo.window is a number of days up to 90d: write for example 28d",
        ),
    ] = "28d"
    """Time over which the objectives hold, in days."""


class RollbackWindow(ApiType):
    """Revisions to which a rollback skips the steps."""

    revisions: Annotated[Int32, Field(ge=0, le=100)]
    """Number of recent revisions before the stable one. Rejected revisions are not recent."""


class RolloutIntents(ApiType):
    """Decisions about the rollout in flight. Each names its target (see status.rollout.token): applying it twice has no
    further effect, and an outdated one has none."""

    promote: (
        Annotated[
            str,
            Field(max_length=64),
            CelRule(
                "self.matches('^[a-z2-7]{10}/[0-9]+/[0-9]+$')",
                "spec.rollout.promote is REVISION/ATTEMPT/STEP: copy it from status.rollout.token",
            ),
        ]
        | None
    ) = None
    """Ends the pause that it names as REVISION/ATTEMPT/STEP."""
    promote_full: (
        Annotated[
            str,
            Field(max_length=64),
            CelRule(
                "self.matches('^[a-z2-7]{10}(/[0-9]+)?$')",
                "spec.rollout.promoteFull is REVISION/ATTEMPT: take the first two parts of status.rollout.token",
            ),
        ]
        | None
    ) = None
    """Skips all steps of the attempt that it names as REVISION/ATTEMPT; REVISION alone is its first attempt. The
    rollout still waits until the pods are ready."""
    abort: (
        Annotated[
            str,
            Field(max_length=64),
            CelRule(
                "self.matches('^[a-z2-7]{10}/[0-9]+$')",
                "spec.rollout.abort is REVISION/ATTEMPT: take the first two parts of status.rollout.token",
            ),
        ]
        | None
    ) = None
    """Rejects the attempt that it names as REVISION/ATTEMPT. All requests return to the stable revision."""
    retry: (
        Annotated[
            str,
            Field(max_length=64),
            CelRule(
                "self.matches('^[a-z2-7]{10}/[0-9]+$')",
                (
                    "spec.rollout.retry is REVISION/ATTEMPT with the next attempt, for example the revision of "
                    "status.rollout.token followed by /2"
                ),
            ),
        ]
        | None
    ) = None
    """Starts another attempt of a rejected revision, which it names as REVISION/ATTEMPT with the number of the new
    attempt."""
    rollback_to: (
        Annotated[
            str,
            Field(max_length=64),
            CelRule(
                "self.matches('^[a-z2-7]{10}/[a-z2-7]{10}$')",
                "spec.rollout.rollbackTo is FROM/TO: status.currentRevision, a slash, and the former revision to run",
            ),
        ]
        | None
    ) = None
    """Runs a former revision instead of the one that the spec describes, as FROM/TO. FROM is the revision of the
    current spec. The rollback skips the steps and ends when the spec changes. FROM/FROM ends a rollback that an alarm
    of spec.accuracy started."""


@rule(
    "!has(self.resources) || !has(self.resources.storage) || "
    "(self.model.uri.matches('^((hf|https|s3|gs|az|oci)://|models:)') && "
    "(!has(self.model.cache) || self.model.cache != 'image'))",
    (
        "spec.resources.storage is for models that are downloaded: remove it, because a model of pvc:// or file://, or "
        "of a mounted image, is used in place"
    ),
)
@rule(
    "!has(self.resources) || !has(self.resources.accelerator) || self.resources.accelerator.count <= 1 || "
    "(has(self.engine) && self.engine.type != 'slipway')",
    "spec.resources.accelerator.count must be 1 for the engine type slipway: one pod's engine uses one device; write "
    "replicas for more of them, or spec.engine.type: vllm",
)
@rule(
    "!has(self.resources) || !has(self.resources.accelerator) || self.resources.accelerator.count <= 1 || "
    "!has(self.resources.accelerator.resource) || "
    "!self.resources.accelerator.resource.startsWith('nvidia.com/mig-') || "
    "!has(self.engine) || !(self.engine.type in ['vllm', 'sglang'])",
    "spec.resources.accelerator.count must be 1 for MIG devices: a process of vllm or sglang uses one at most; write a "
    "larger profile",
)
@rule(
    "!has(self.resources) || !has(self.resources.sharedMemory) || !has(self.resources.accelerator) || "
    "!has(self.resources.accelerator.sharing) || self.resources.accelerator.sharing != 'MPS'",
    "spec.resources.sharedMemory does not go with accelerator.sharing: MPS, which has its own /dev/shm: remove it",
)
@rule(
    "!has(self.batching) || (has(self.model.task) && self.model.task in ['predict', 'classify', 'rerank'])",
    "spec.batching is for spec.model.task: predict, classify and rerank: "
    "remove it; language models have continuous batches",
)
@rule(
    "!has(self.model.task) || !(self.model.task in ['predict', 'classify', 'rerank']) || !has(self.engine) || "
    "(self.engine.type == 'slipway' && !has(self.engine.toolParser) && !has(self.engine.reasoningParser))",
    "spec.model.task predict, classify or rerank is for the engine type slipway, without toolParser and "
    "reasoningParser: remove them",
)
@rule(
    "!has(self.model.task) || !(self.model.task in ['predict', 'classify', 'rerank']) || !has(self.resources) || "
    "!has(self.resources.accelerator)",
    "spec.model.task predict, classify or rerank uses CPUs: remove spec.resources.accelerator",
)
@rule(
    "!has(self.engine) || self.engine.type == 'slipway' || !has(self.model.quantization) || "
    "self.model.quantization == 'none'",
    "spec.model.quantization is for the engine type slipway: remove it, and write the engine's own flag in "
    "spec.engine.args",
)
@rule(
    "!has(self.engine) || self.engine.type != 'custom' || ((!has(self.model.task) || self.model.task == 'auto') && "
    "(!has(self.model.dtype) || self.model.dtype == 'auto') && !has(self.model.maxModelLen))",
    "spec.model.task, dtype and maxModelLen are not for the engine type custom: remove them, and write the "
    "engine's own flags in spec.engine.args",
)
@rule(
    "!has(self.engine) || !has(self.engine.speculation) || (self.engine.speculation.method == 'draft') == "
    "has(self.model.draft)",
    "spec.engine.speculation.method: draft and spec.model.draft go together: write both, or the other method alone",
)
@rule(
    "!has(self.model.draft) || ((!has(self.model.task) || self.model.task in ['auto', 'generate']) && "
    "(!has(self.engine) || self.engine.type != 'custom'))",
    "spec.model.draft is for models that generate text, and not for the engine type custom: remove it",
)
@rule(
    "!has(self.model.draft) || !has(self.engine) || !has(self.engine.args) || self.engine.args.all(a, "
    "!a.matches('^(--specul|--num-specul|--prompt-lookup|-sc)'))",
    "spec.engine.args must not set flags of speculative decoding beside spec.model.draft: remove one of them",
)
@rule(
    "!has(self.engine) || !has(self.engine.speculation) || !has(self.model.task) || "
    "self.model.task in ['auto', 'generate']",
    "spec.engine.speculation is for models that generate text: remove it, or write spec.model.task: generate",
)
@rule(
    (
        "!(has(self.resources) && has(self.resources.accelerator) && has(self.engine) && has(self.engine.args)) "
        "|| self.engine.type != 'slipway' || !self.engine.args.exists(a, a.matches('^--device(=.*)?$'))"
    ),
    (
        "spec.engine.args must not set --device beside spec.resources.accelerator: the operator sets --device "
        "cuda; remove one of the two"
    ),
)
@rule(
    (
        "!(has(self.resources) && has(self.resources.accelerator) && has(self.model.quantization) && "
        "self.model.quantization in ['int8', 'int4'])"
    ),
    "spec.model.quantization int8 and int4 are for CPUs: remove it, or spec.resources.accelerator",
)
@rule(
    "!has(self.engine) || !has(self.engine.volumeMounts) || (has(self.pod) && has(self.pod.volumes) && "
    "self.engine.volumeMounts.all(m, self.pod.volumes.exists(v, v.name == m.name)))",
    "spec.engine.volumeMounts names a volume that spec.pod.volumes does not have: add it there",
)
@rule(
    "!has(self.pool) || (has(self.model.task) && self.model.task in ['predict', 'classify', 'rerank'])",
    "spec.pool is for classic models: write spec.model.task: predict, classify or rerank, or remove spec.pool",
)
@rule(
    "!has(self.pool) || !(has(self.resources) || has(self.placement) || has(self.pod) || has(self.engine) || "
    "has(self.batching) || has(self.autoscaling) || has(self.restartAt))",
    "a model with spec.pool has no pods of its own: remove spec.resources, placement, pod, engine, batching, "
    "autoscaling and restartAt, and write them into the ModelPool",
)
@rule(
    "!has(self.pool) || self.replicas <= 1",
    "a model with spec.pool has no pods of its own: remove spec.replicas, or write 0 to stop it, and write the number "
    "of pods into the ModelPool",
)
@rule(
    "!has(self.pool) || (!self.model.uri.startsWith('pvc://') && !has(self.model.secretRef) && "
    "(!has(self.model.cache) || self.model.cache == 'none'))",
    "the pods of a pool download its models: spec.model.uri of a model with spec.pool is no pvc://, and secretRef and "
    "cache are not for it; write the Secret into spec.secretRef of the ModelPool",
)
@rule(
    "!has(self.pool) || !self.model.uri.startsWith('models:')",
    "spec.model.uri of a model with spec.pool is no models:/ URI, because its pods download at different times: write "
    "the location of the files, and their digest in spec.model.revision",
)
@rule(
    "!has(self.pool) || self.model.uri.startsWith('file://') || (self.model.uri.startsWith('oci://') && "
    "self.model.uri.contains('@sha256:')) || (has(self.model.revision) && "
    "self.model.revision.matches('^(sha256:[0-9a-f]{64}|[0-9a-f]{40})$'))",
    "pods of a pool download a model at different times and must get the same files: write spec.model.revision as "
    "sha256: and a digest, or the 40 digits of a commit; or a digest in an oci:// uri",
)
@rule(
    "!has(self.pool) || !has(self.strategy) || ((!has(self.strategy.canary) || !has(self.strategy.canary.baselinePod) "
    "|| !self.strategy.canary.baselinePod) && (!has(self.strategy.blueGreen) || "
    "!has(self.strategy.blueGreen.prePromotionAnalysis) || "
    "!has(self.strategy.blueGreen.prePromotionAnalysis.twinShadow)))",
    "a model with spec.pool has no pods of its own: remove baselinePod and twinShadow from spec.strategy",
)
@rule(
    "!has(self.autoscaling) || !has(self.autoscaling.objective) || (has(self.slo) && (has(self.slo.ttftP95) || "
    "has(self.slo.itlP95) || has(self.slo.latencyP99)))",
    "spec.autoscaling.objective needs a latency that pods have to hold: write ttftP95, itlP95 or latencyP99 into "
    "spec.slo",
)
@rule(
    "!has(self.strategy) || !has(self.strategy.canary) || !has(self.strategy.canary.steps) || "
    "!self.strategy.canary.steps.exists(step, has(step.analysis) && has(step.analysis.twinShadow) && "
    "(!has(step.analysis.twinShadow.reference) || step.analysis.twinShadow.reference != 'OnFailure')) || "
    "(has(self.strategy.canary.baselinePod) && self.strategy.canary.baselinePod)",
    "an analysis with twinShadow needs baseline pods: add spec.strategy.canary.baselinePod: true, remove "
    "twinShadow, or write twinShadow.reference: OnFailure",
)
@rule(
    "!has(self.adapters) || (!has(self.pool) && (!has(self.model.task) || self.model.task in ['auto', 'generate']))",
    "spec.adapters is for language models with pods of their own: remove it, or spec.pool and spec.model.task",
)
@rule(
    "!has(self.adapters) || !has(self.engine) || !has(self.engine.parallelism) || "
    "!has(self.engine.parallelism.nodes) || self.engine.parallelism.nodes <= 1",
    "spec.adapters is for replicas of one pod: remove it, or write spec.engine.parallelism.nodes: 1",
)
@rule(
    "!has(self.adapters) || !has(self.engine) || (self.engine.type in ['slipway', 'vllm', 'sglang'] && "
    "(!has(self.engine.args) || self.engine.args.all(a, !a.matches('^--(enable|max)[-_](loaded[-_]|cpu[-_])?lora') && "
    "!a.matches('^--lora'))))",
    "spec.adapters is for the engine types slipway, vllm and sglang, whose flags for adapters the operator sets: "
    "remove spec.adapters, or these flags from spec.engine.args",
)
@rule(
    "!has(self.adapters) || !has(self.engine) || self.engine.type == 'slipway' || (!has(self.adapters.memory) && "
    "(self.engine.type != 'vllm' || !has(self.adapters.maxRank) || "
    "self.adapters.maxRank in [1, 8, 16, 32, 64, 128, 256, 320, 512]))",
    "spec.adapters.memory is for the engine type slipway, and vllm takes spec.adapters.maxRank of 1, 8, 16, 32, 64, "
    "128, 256, 320 or 512",
)
@rule(
    "!has(self.standbyReplicas) || self.standbyReplicas == 0 || (!has(self.pool) && (!has(self.engine) || "
    "!has(self.engine.parallelism) || !has(self.engine.parallelism.nodes) || self.engine.parallelism.nodes <= 1))",
    "spec.standbyReplicas is for models with pods of their own, one for each replica: remove it, or spec.pool, or "
    "write spec.engine.parallelism.nodes: 1",
)
@implied_defaults(written=("replicas",))  # the scale subresource reads it
class ModelDeploymentSpec(InputsRecord):
    """Desired state: the model, the number of pods that serve it, and the rollout of new versions."""

    replicas: Annotated[Int32, Field(ge=0, le=10000)] = 1
    """Number of pods that serve, over all revisions. kubectl scale and HorizontalPodAutoscalers write it: omit it from
    your manifest when you use one of them."""
    standby_replicas: Annotated[Int32, Field(ge=0, le=100)] = 0
    """Number of standby pods beside spec.replicas. They have the model in memory and take no requests. When
    spec.replicas rises, they serve at once, and others replace them. They have a low priority: other pods that need
    their node take it."""
    autoscaling: AutoscalingSpec | None = None
    strategy: RolloutStrategy | None = None
    drain: Drain | None = None
    traffic: TrafficSpec | None = None
    slo: ServiceLevelObjectives | None = None
    accuracy: AccuracySpec | None = None
    paused: bool = False
    """When true, the rollout makes no progress. Recovery of pods, scaling and abort still work."""
    progress_deadline_seconds: Annotated[Int32, Field(ge=5, le=86400)] = 600
    """Maximum time in seconds without progress of a revision's pods. After that the revision is rejected, with the
    reason of the pods."""
    rollback_window: RollbackWindow | None = None
    restart_at: Time | None = None
    """Pods created before this time are replaced one by one. Each is deleted when a new pod is ready."""
    revision_history_limit: Annotated[Int32, Field(ge=0, le=100)] = 5
    """Number of former revisions that are kept for a rollback."""
    analysis: RunHistoryLimits | None = None
    rollout: RolloutIntents | None = None


@custom_resource(
    Definition(
        group="slipway.dev",
        version="v1alpha1",
        plural="modeldeployments",
        short_names=("mdep",),
        categories=("slipway",),
        columns=(
            PrinterColumn(
                "Phase", "string", ".status.phase", "Pending, Progressing, Paused, Healthy, Degraded or Asleep."
            ),
            PrinterColumn(
                "Reason",
                "string",
                ".status.reason",
                "Reason of a failure, otherwise progress of a download, or state of the rollout with the expected time "
                "of an analysis. Normally empty.",
            ),
            PrinterColumn(
                "Step", "string", ".status.step", "Current step of the rollout in flight, and the number of steps."
            ),
            PrinterColumn(
                "Weight",
                "integer",
                ".status.weight",
                "Percent of new requests for the canary, as acknowledged by every ready gateway.",
            ),
            PrinterColumn("Ready", "string", ".status.ready", "Ready and desired pods of all revisions."),
            PrinterColumn("Stable", "string", ".status.stableRevision", "Revision that was last promoted."),
            PrinterColumn("Canary", "string", ".status.canaryRevision", "Revision under test."),
            PrinterColumn("Age", "date", ".metadata.creationTimestamp"),
            PrinterColumn("Model", "string", ".status.model", "Name that clients send as model.", wide=True),
            PrinterColumn(
                "Endpoint", "string", ".status.endpoint", "Base URL for OpenAI clients inside the cluster.", wide=True
            ),
            PrinterColumn(
                "Message", "string", ".status.message", "Current activity, and the reason for it.", wide=True
            ),
        ),
        status=True,
        scale=ScaleSubresource(".spec.replicas", ".status.replicas", ".status.selector"),
    )
)
@rule(
    "self.metadata.name.size() <= 52",
    "metadata.name may have at most 52 characters: the names of pods and services append the revision to it",
)
@rule(
    "!(has(self.spec.strategy) && has(self.spec.strategy.canary) && has(self.spec.strategy.canary.baselinePod) && "
    "self.spec.strategy.canary.baselinePod) || self.metadata.name.size() <= 43",
    "with spec.strategy.canary.baselinePod metadata.name may have at most 43 characters: the names of the baseline's "
    "services append more to it; choose a shorter name, or remove baselinePod",
)
@rule(
    "!(has(self.spec.strategy) && has(self.spec.strategy.blueGreen) && "
    "has(self.spec.strategy.blueGreen.prePromotionAnalysis) && "
    "has(self.spec.strategy.blueGreen.prePromotionAnalysis.twinShadow)) || self.metadata.name.size() <= 43",
    "with prePromotionAnalysis.twinShadow metadata.name may have at most 43 characters: the names of the baseline's "
    "services append more to it; choose a shorter name, or remove twinShadow",
)
@rule(
    "!(has(self.spec.engine) && has(self.spec.engine.parallelism) && self.spec.engine.parallelism.nodes > 1) || "
    "self.metadata.name.size() <= 28",
    "with spec.engine.parallelism.nodes above 1 metadata.name may have at most 28 characters: the names of "
    "StatefulSets append more to it; choose a shorter name",
)
@rule(
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name must start with a letter and hold only a-z, 0-9 and '-', because Services are named after it; "
    "write for example chat-v2",
)
class ModelDeployment(ApiType):
    """Model behind an OpenAI-compatible endpoint, and the rollout of its new versions."""

    spec: ModelDeploymentSpec
    status: PatchedStatus | None = None
