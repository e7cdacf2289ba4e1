"""The writes about autoscalers: our HorizontalPodAutoscaler, while no other one scales the ModelDeployment."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from slipway_operator.manifests.autoscaler import (
    API_VERSION,
    CUSTOM,
    EXTERNAL,
    KIND,
    has_fields,
    horizontal_pod_autoscaler,
)
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.cluster.observed import Autoscaler, ScalerCondition
from slipway_operator.model.cluster.plan import Create, Delete
from slipway_operator.planning.facts.situation import Situation

# The controller handles a new HorizontalPodAutoscaler within its period, 15 s by default.
INERT_S = 60
REFUSED_AGAIN_S = 60  # no event reports that a quota has room again, or that a policy was removed


@dataclass(frozen=True, slots=True)
class Scaling:
    """The writes about autoscalers."""

    create: Create | None = None
    delete: tuple[Delete, ...] = ()


@dataclass(frozen=True, slots=True)
class Scalers:
    """The autoscalers that concern a ModelDeployment."""

    wanted: bool  # spec.autoscaling has something to follow
    ours: Autoscaler | None
    others: tuple[Autoscaler, ...]  # that have it as their target, or the name of ours

    @property
    def rivals(self) -> tuple[Autoscaler, ...]:
        """Those of others that have it as their target."""
        return tuple(scaler for scaler in self.others if scaler.aims_here)


def scalers_of(at: Situation) -> Scalers:
    """The autoscalers by whose they are; an orphan is adopted where one is wanted."""
    scaled, observed = at.spec.autoscaling, at.observed.autoscalers
    wanted = scaled is not None and scaled.has_autoscaler
    ours = next((scaler for scaler in observed if scaler.ours or (wanted and scaler.orphan)), None)
    return Scalers(wanted, ours, tuple(scaler for scaler in observed if scaler is not ours))


def scaling(owner: Owner, at: Situation) -> Scaling:
    """The writes about our HorizontalPodAutoscaler; `spec.replicas` is never written.

    Ours exists exactly while spec.autoscaling has something to follow and no other autoscaler scales the deployment.
    """
    scalers = scalers_of(at)
    if scalers.wanted and not scalers.others:
        return Scaling(_creation(owner, at, scalers.ours))
    return Scaling(delete=(Delete(API_VERSION, KIND, scalers.ours.name),) if scalers.ours else ())


def moments(at: Situation) -> tuple[datetime, ...]:
    """When an autoscaler without status counts as inert, and a refused one is tried again: no event reports either."""
    inert = (
        scaler.created_at + timedelta(seconds=INERT_S)
        for scaler in at.observed.autoscalers
        if scaler.aims_here and controller_condition(scaler, "ScalingActive") is None
    )
    return (*inert, *([at.now + timedelta(seconds=REFUSED_AGAIN_S)] if at.observed.autoscaler_refusal else ()))


def controller_condition(scaler: Autoscaler, kind: str) -> ScalerCondition | None:
    """The condition that Kubernetes' own controller reports; None where it has reported none."""
    return next((reported for reported in scaler.conditions if reported.type == kind), None)


def _creation(owner: Owner, at: Situation, live: Autoscaler | None) -> Create | None:
    assert at.spec.autoscaling is not None, "called only where the field is set"
    manifest = horizontal_pod_autoscaler(owner, at.spec.autoscaling, _group(at))
    return None if live and not live.orphan and has_fields(live.spec, manifest["spec"]) else Create(manifest)


def _group(at: Situation) -> str:
    """The metrics API that serves our own metrics: custom unless another provider has it and external is ours."""
    providers = at.observed.metrics_providers
    return EXTERNAL if providers.get(CUSTOM) and providers.get(EXTERNAL) == "" else CUSTOM
