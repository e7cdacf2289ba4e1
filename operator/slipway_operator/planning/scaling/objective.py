"""What the status shows of spec.autoscaling.objective: how many pods there should be, and why."""

from datetime import datetime

from slipway_contracts.api.times import format_time
from slipway_operator.api.v1alpha1.status import AutoscalingStatus
from slipway_operator.model.cluster.observed import Autoscaler, ScalingReport
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.autoscaling import OWN_NAMES, MetricType, Objective
from slipway_operator.planning.facts.situation import Situation
from slipway_operator.planning.scaling.autoscale import scalers_of

WRITE_S = 60.0  # numbers alone are written no more often
ADVISE, ACT = "Advise", "Act"
MOST_LINES = 20
_DESIRED = OWN_NAMES[MetricType.DESIRED_REPLICAS]


def shown(at: Situation) -> AutoscalingStatus | None:
    """What the status has of the objective; the former value where nothing new is worth a write."""
    objective, report, former = _objective(at), at.observed.scaling, at.status.autoscaling
    if objective is None:
        return None
    if report is None:  # nothing samples pods yet: what was known stays
        return former
    renewed = _renewed(objective, report, former, at.now)
    if former is None or _differs(former, renewed):
        return renewed
    return renewed if at.elapsed_s(former.read_at) >= WRITE_S or at.now < former.read_at else former


def others(at: Situation) -> tuple[Autoscaler, ...]:
    """Autoscalers of others that scale the deployment and do not follow the published number."""
    return tuple(scaler for scaler in scalers_of(at).rivals if not follows(scaler))


def follows(scaler: Autoscaler) -> bool:
    """Whether an autoscaler follows the published number."""
    return any(_DESIRED in str(metric) for metric in scaler.spec.get("metrics") or ())


def events(at: Situation) -> tuple[Event, ...]:
    """An Event for a changed number of pods."""
    before, now = at.status.autoscaling, shown(at)
    if before is None or now is None or before.desired_replicas == now.desired_replicas:
        return ()
    text = f"{before.desired_replicas} to {now.message}"
    return (Event("Normal", "ScalingDecided", text) if now.mode == ACT else Event("Normal", "ScalingAdvised", text),)


def _objective(at: Situation) -> Objective | None:
    return at.spec.autoscaling.objective if at.spec.autoscaling else None


def _differs(former: AutoscalingStatus, renewed: AutoscalingStatus) -> bool:
    """Whether more than numbers changed."""
    return (former.mode, former.desired_replicas) != (renewed.mode, renewed.desired_replicas)


def _renewed(
    objective: Objective, report: ScalingReport, former: AutoscalingStatus | None, now: datetime
) -> AutoscalingStatus:
    changed = former is None or former.desired_replicas != report.desired
    line = f"{format_time(now)} {report.desired} {report.rule}: {report.message}"
    lines = (*(former.log if former else ()), *((line,) if changed else ()))
    return AutoscalingStatus(
        mode=ACT if objective.acts else ADVISE,
        desired_replicas=report.desired,
        rule=report.rule,
        message=report.message,
        since=now if changed or former is None else former.since,
        read_at=now,
        needed_replicas=report.needed,
        utilization_percent=report.utilization_percent,
        demand_per_second=report.demand,
        forecast_per_second=report.forecast,
        forecast_skill=report.skill,
        revisions=report.revisions,
        history=report.history,
        log=lines[-MOST_LINES:],
    )
