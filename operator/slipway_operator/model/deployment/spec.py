"""A ModelDeployment's spec as typed, immutable values; an invalid one becomes `Invalid`, never an exception."""

import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.api.types import ApiType
from slipway_contracts.api.writing import camel
from slipway_contracts.guards import GuardSpec, guards_refusal
from slipway_contracts.resilience import (
    LONGEST_EJECTION_S,
    CircuitBreaker,
    Degradation,
    ExternalTarget,
    RetryBudget,
    external_target,
)
from slipway_contracts.route_table import LONGEST_TTL_S, GenerationLogSample, InferenceLogSample, ResponseCache
from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1 import strategy as strategies
from slipway_operator.api.v1alpha1.hooks import Webhook
from slipway_operator.api.v1alpha1.model_deployment import (
    CircuitBreakerSpec,
    DegradationSpec,
    Drain,
    GenerationLogSpec,
    InferenceLogSpec,
    ModelDeploymentSpec,
    ResponseCacheSpec,
    RetryBudgetSpec,
    RolloutIntents,
    RunHistoryLimits,
    TrafficSpec,
)
from slipway_operator.model.deployment.accuracy import AccuracyTerms, accuracy_of
from slipway_operator.model.deployment.autoscaling import Autoscaling, autoscaling_of
from slipway_operator.model.deployment.hooks import Hook, hook_of
from slipway_operator.model.deployment.objectives import ErrorBudgetTerms, terms_of
from slipway_operator.model.deployment.strategy import Strategy, parse_duration_s, strategy_of
from slipway_operator.model.inputs.pod_inputs import PodInputs, checked, inputs_of
from slipway_operator.model.inputs.registry import RegistryReference, is_reference, read_reference

KEPT = 1024  # parsed specs
LONGEST_MESSAGE = 1024  # characters: the message goes into the status and may quote the spec


@dataclass(frozen=True, slots=True)
class Invalid:
    """Why a spec is not used: it is invalid though the schema accepted it, or the installation does not allow it."""

    message: str
    reason: str = "InvalidSpec"


@dataclass(frozen=True, slots=True)
class Intents:
    """The user's commands for a rollout, as tokens that name the revision, attempt or step; None: no command."""

    promote: str | None = None
    promote_full: str | None = None
    abort: str | None = None
    retry: str | None = None
    rollback_to: str | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed spec."""

    inputs: PodInputs
    replicas: int = 1
    standby_replicas: int = 0
    strategy: Strategy = field(default_factory=Strategy)
    drain_timeout_s: int = 600
    paused: bool = False
    progress_deadline_s: int = 600
    revision_history_limit: int = 5
    run_history: tuple[int, int] = (5, 5)  # former AnalysisRuns that are kept: passed ones, and all others
    rollback_window: int = 0  # a rollout to one of this many former revisions skips the steps
    restart_at: datetime | None = None  # pods made before this moment are replaced
    intents: Intents = field(default_factory=Intents)
    hooks: tuple[Hook, ...] = ()
    autoscaling: Autoscaling | None = None
    forward_headers: tuple[str, ...] = ()  # names of credential headers of clients that gateways pass on to pods
    inference_log: InferenceLogSample | None = None  # which requests gateways log; None: none
    generation_log: GenerationLogSample | None = None  # the same of requests for text
    prefix_affinity: bool = False  # gateways prefer pods that have seen the beginning of a prompt
    fallback: tuple[str, ...] = ()  # names of ModelDeployments of the namespace that answer in place of this one
    first_byte_s: int | None = None  # after so long without a first byte too
    cache: ResponseCache | None = None  # responses that gateways keep; None: none
    external: tuple[ExternalTarget, ...] = ()  # those of `fallback` that are APIs of other providers
    circuit_breaker: CircuitBreaker | None = None
    retry_budget: RetryBudget | None = None
    degradation: Degradation | None = None
    guards: tuple[GuardSpec, ...] = ()  # checks of requests and responses
    slo: ErrorBudgetTerms | None = None  # objectives of the service; None: none
    accuracy: AccuracyTerms | None = None  # what is watched after the rollout; None: nothing
    registry: RegistryReference | None = None  # what a models:/ URI of spec.model names; None: it is another URI
    base_engine: str | None = None  # of an adapter: engine type of the ModelDeployment that serves it

    @property
    def fallback_deployments(self) -> tuple[str, ...]:
        """Names of the ModelDeployments of the namespace that answer in place of this one, each once."""
        external = {one.name for one in self.external}
        smaller = (self.degradation.name,) if self.degradation and self.degradation.name else ()
        return tuple(dict.fromkeys((*smaller, *(name for name in self.fallback if name not in external))))


def parse(obj: Json) -> Spec | Invalid:
    """Parse the spec of a ModelDeployment object."""
    try:
        written = encoded(obj.get("spec"))
    except ValueError as error:
        return invalid(error)
    return _parsed(obj["metadata"]["name"], written)


@lru_cache(KEPT)
def _parsed(name: str, written: bytes) -> Spec | Invalid:
    """Parse the spec, cached by content: each reconcile parses it, and it seldom changes."""
    try:
        return _spec_of(read(ModelDeploymentSpec, written, "spec"), name)
    except ValueError as error:
        return invalid(error)


def _spec_of(spec: ModelDeploymentSpec, name: str) -> Spec:
    return Spec(
        inputs=checked(inputs_of(spec, name)),
        replicas=spec.replicas,
        standby_replicas=spec.standby_replicas,
        strategy=strategy_of(spec.strategy or strategies.RolloutStrategy()),
        drain_timeout_s=(spec.drain or Drain()).timeout_seconds,
        paused=spec.paused,
        progress_deadline_s=spec.progress_deadline_seconds,
        revision_history_limit=spec.revision_history_limit,
        run_history=run_history_of(spec.analysis or RunHistoryLimits()),
        rollback_window=spec.rollback_window.revisions if spec.rollback_window else 0,
        restart_at=spec.restart_at,
        intents=intents_of(spec.rollout or RolloutIntents()),
        hooks=tuple(map(hook_of, spec.strategy.hooks)) if spec.strategy else (),
        autoscaling=autoscaling_of(spec.autoscaling),
        forward_headers=spec.traffic.forward_headers if spec.traffic else (),
        inference_log=_inference_log(spec.traffic.inference_log) if spec.traffic else None,
        generation_log=_generation_log(spec.traffic.generation_log) if spec.traffic else None,
        prefix_affinity=_has_prefix_affinity(spec.traffic),
        fallback=tuple(target.name for target in spec.traffic.fallback) if spec.traffic else (),
        first_byte_s=spec.traffic.first_byte_timeout_seconds if spec.traffic else None,
        cache=_response_cache(spec.traffic.cache) if spec.traffic else None,
        external=_external(spec.traffic) if spec.traffic else (),
        circuit_breaker=_circuit_breaker(spec.traffic.circuit_breaker) if spec.traffic else None,
        retry_budget=_retry_budget(spec.traffic.retry_budget) if spec.traffic else None,
        degradation=_degradation(spec.traffic.degradation) if spec.traffic else None,
        guards=_guards(spec.traffic) if spec.traffic else (),
        slo=terms_of(spec.slo) if spec.slo else None,
        accuracy=accuracy_of(spec.accuracy) if spec.accuracy else None,
        registry=read_reference(spec.model.uri) if is_reference(spec.model.uri) else None,
    )


def _has_prefix_affinity(traffic: TrafficSpec | None) -> bool:
    balancing = traffic.load_balancing if traffic else None
    return balancing is not None and balancing.policy == "PrefixAffinity"


def _external(traffic: TrafficSpec) -> tuple[ExternalTarget, ...]:
    return tuple(external_target(one.name, one.external) for one in traffic.fallback if one.external)


def _circuit_breaker(written: CircuitBreakerSpec | None) -> CircuitBreaker | None:
    if written is None:
        return None
    seconds = int(parse_duration_s(written.base_ejection_time))
    if not 1 <= seconds <= LONGEST_EJECTION_S:
        raise ValueError("spec.traffic.circuitBreaker.baseEjectionTime is from 1s to 1h")
    return CircuitBreaker(written.consecutive_5xx_errors, seconds)


def _retry_budget(written: RetryBudgetSpec | None) -> RetryBudget | None:
    return RetryBudget(written.budget_percent, written.min_retry_concurrency) if written else None


def _degradation(written: DegradationSpec | None) -> Degradation | None:
    return Degradation(written.name, written.max_tokens, written.single_choice or None) if written else None


def _guards(traffic: TrafficSpec) -> tuple[GuardSpec, ...]:
    """Raises ValueError: gateways would refuse them, and the whole table with them."""
    if refusal := guards_refusal(traffic.guards):
        raise ValueError(f"spec.traffic.{refusal}")
    return traffic.guards


def _response_cache(written: ResponseCacheSpec | None) -> ResponseCache | None:
    """Raises ValueError: its time is no duration, or is out of bounds."""
    if written is None:
        return None
    ttl_s = parse_duration_s(written.ttl)
    if not 1 <= ttl_s <= LONGEST_TTL_S:
        raise ValueError(f"spec.traffic.cache.ttl must be from 1s to {LONGEST_TTL_S // 3600}h, not {written.ttl}")
    return ResponseCache(ttl_s, written.shared or None)


def run_history_of(limits: RunHistoryLimits) -> tuple[int, int]:
    """Former AnalysisRuns that are kept: passed ones, and all others."""
    return limits.successful_run_history_limit, limits.unsuccessful_run_history_limit


def _inference_log(written: InferenceLogSpec | None) -> InferenceLogSample | None:
    if written is None or not written.percentage:
        return None
    return InferenceLogSample(written.percentage, True if written.contents == "Full" else None)


def _generation_log(written: GenerationLogSpec | None) -> GenerationLogSample | None:
    if written is None or not written.percentage:
        return None
    return GenerationLogSample(written.percentage, True if written.contents == "Full" else None)


def invalid(error: Exception) -> Invalid:
    """Why a spec cannot be read."""
    return Invalid(f"the spec cannot be read: {error}"[:LONGEST_MESSAGE])


class _Hooks(ApiType):
    hooks: tuple[Webhook, ...] = ()


class _Hooked(ApiType):
    """A spec of which only the hooks are read."""

    strategy: _Hooks | None = None


def hooks_of(spec: Spec | Invalid, obj: Json) -> tuple[Hook, ...]:
    """Return the webhooks of a ModelDeployment, also if its spec is invalid, so that event hooks get its Events."""
    if isinstance(spec, Spec):
        return spec.hooks
    try:
        alone = read(_Hooked, encoded(obj.get("spec")), "spec")
    except ValueError:
        return ()
    return tuple(map(hook_of, alone.strategy.hooks)) if alone.strategy else ()


_REVISION, _NUMBER = "[a-z2-7]{10}", "[0-9]{1,9}"
_TOKENS = {
    "promote": re.compile(f"{_REVISION}/{_NUMBER}/{_NUMBER}"),
    "promote_full": re.compile(f"{_REVISION}(/{_NUMBER})?"),
    "abort": re.compile(f"{_REVISION}/{_NUMBER}"),
    "retry": re.compile(f"{_REVISION}/{_NUMBER}"),
    "rollback_to": re.compile(f"{_REVISION}/{_REVISION}"),
}


def intents_of(written: RolloutIntents) -> Intents:
    """Check and return the commands. The CRD does not bound the numbers in them, which the status keeps in 32 bits."""
    tokens: dict[str, str | None] = {name: getattr(written, name) for name in _TOKENS}
    for name, pattern in _TOKENS.items():
        token = tokens[name]
        if token is not None and not pattern.fullmatch(token):
            raise ValueError(f"spec.rollout.{camel(name)} {token!r} is no token of a rollout: see status.rollout.token")
    return Intents(**tokens)
