"""A ModelAdapter's spec in the form of a ModelDeployment's: the planner decides about both. Pure."""

from dataclasses import replace
from functools import lru_cache

from slipway_contracts.adapters import adapter_of
from slipway_contracts.api.reading import encoded, read
from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.model_adapter import ModelAdapterSpec
from slipway_operator.api.v1alpha1.model_deployment import RolloutIntents, RunHistoryLimits
from slipway_operator.model.deployment.hooks import hook_of
from slipway_operator.model.deployment.spec import KEPT, Invalid, Spec, intents_of, invalid, parse, run_history_of
from slipway_operator.model.deployment.strategy import Capacity, ProgressThreshold, Strategy, strategy_of
from slipway_operator.model.inputs.pod_inputs import adapter_inputs
from slipway_operator.model.inputs.registry import is_reference

NO_DEPLOYMENT, NO_ROOM = "DeploymentNotFound", "AdaptersNotEnabled"  # reasons of the condition Accepted
REASONS = (NO_DEPLOYMENT, NO_ROOM)


def base_of(obj: Json) -> str:
    """Name of the ModelDeployment that a ModelAdapter names; empty where it names none."""
    reference = (obj.get("spec") or {}).get("deploymentRef")
    return str(reference.get("name") or "") if isinstance(reference, dict) else ""


def parse_adapter(obj: Json, base: Json | None) -> Spec | Invalid:
    """Parse the spec of a ModelAdapter. `base`: the ModelDeployment that it names; None where there is none."""
    try:
        written = encoded(obj.get("spec"))
    except ValueError as error:
        return invalid(error)
    own = _parsed(adapter_of(obj["metadata"]["name"]) or "", written)
    if isinstance(own, Invalid):
        return own
    spec, has_strategy = own
    if base is None:
        what = f"there is no ModelDeployment {spec.inputs.base} in this namespace"
        return Invalid(f"spec.deploymentRef: {what}: create it, or another ModelAdapter", NO_DEPLOYMENT)
    under = parse(base)
    if isinstance(under, Invalid):  # its pods may serve all the same
        return spec
    if under.inputs.adapters is None:
        what = f"the ModelDeployment {spec.inputs.base} has no spec.adapters, so its pods load none"
        return Invalid(f"spec.deploymentRef: {what}: add spec.adapters to it", NO_ROOM)
    spec = replace(spec, base_engine=under.inputs.engine.type, drain_timeout_s=under.drain_timeout_s)
    return spec if has_strategy else replace(spec, strategy=_without_pods(under.strategy), hooks=under.hooks)


@lru_cache(KEPT)
def _parsed(name: str, written: bytes) -> tuple[Spec, bool] | Invalid:
    """What the spec says by itself, and whether it has a strategy."""
    try:
        spec = read(ModelAdapterSpec, written, "spec")
        if is_reference(spec.model.uri):
            raise ValueError("spec.model.uri of a ModelAdapter is no models:/ URI: write the location of its files")
        return _spec_of(spec, name), spec.strategy is not None
    except ValueError as error:
        return invalid(error)


def _spec_of(spec: ModelAdapterSpec, name: str) -> Spec:
    return Spec(
        inputs=adapter_inputs(spec.model, spec.deployment_ref.name, name),
        strategy=_without_pods(strategy_of(spec.strategy)) if spec.strategy else Strategy(),
        hooks=tuple(map(hook_of, spec.strategy.hooks)) if spec.strategy else (),
        paused=spec.paused,
        progress_deadline_s=spec.progress_deadline_seconds,
        revision_history_limit=spec.revision_history_limit,
        run_history=run_history_of(spec.analysis or RunHistoryLimits()),
        rollback_window=spec.rollback_window.revisions if spec.rollback_window else 0,
        intents=intents_of(spec.rollout or RolloutIntents()),
    )


def _without_pods(strategy: Strategy) -> Strategy:
    """The strategy for an adapter, which takes no pods: both versions are on those of the ModelDeployment."""
    return replace(strategy, baseline_pod=False, capacity=Capacity(), progress_threshold=ProgressThreshold())
