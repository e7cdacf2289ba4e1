"""What `slipway status` shows: objects of the API become lines of a tree; pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from datetime import datetime
from typing import Any

from slipway_cli.api import Json
from slipway_cli.objects import deployment, pods, registered_model
from slipway_cli.objects.bad_when_true import BAD_WHEN_TRUE
from slipway_cli.objects.deployment import ANALYZING, CAPACITY_WAIT, FIRST, PAUSED, Deployment
from slipway_cli.objects.pods import PodRow
from slipway_cli.objects.pool import Pool
from slipway_cli.objects.times import format_age, parse_time
from slipway_cli.views import analysis, steps
from slipway_cli.views.analysis import AnalysisView
from slipway_cli.views.steps import StepLine

MAX_EVENTS = 6
_ROLES = ("canary", "baseline", "stable", "old")
# All other conditions are bad news when they are not True.
_NEGATIVE = BAD_WHEN_TRUE


@dataclass(frozen=True, slots=True)
class RevisionView:
    """A revision that has pods."""

    role: str
    revision: str
    version: str | None
    weight: int
    ready: int
    replicas: int
    inflight: int | None
    leaves_at: str | None
    pods: tuple[PodRow, ...]
    entry: str | None = None  # of a pool: whether it is in memory, and why it is not served
    standby: str | None = None  # how many standby pods wait and serve, and why some are missing


@dataclass(frozen=True, slots=True)
class ConditionView:
    """A condition that is not as it should be."""

    type: str
    status: str
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class EventView:
    """An Event, or a decision of the operator in place of one."""

    at: datetime | None
    type: str
    reason: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class View:
    """Everything about one ModelDeployment that a person wants to see at once."""

    namespace: str
    name: str
    phase: str
    step: str | None
    weight: int | None
    ready: str | None
    model: str | None
    endpoint: str | None
    message: str
    clocks: tuple[str, ...]  # deadlines and waits with their start
    revisions: tuple[RevisionView, ...]
    steps: tuple[StepLine, ...]
    conditions: tuple[ConditionView, ...]
    events: tuple[EventView, ...]
    analyses: tuple[AnalysisView, ...] = ()
    notes: tuple[str, ...] = ()  # objects that could not be read, and why
    rollback: str | None = None  # which revision runs in place of the spec's; None while no rollback holds
    pool: Pool | None = None  # that serves it, without its entries
    registry: tuple[str, ...] = ()  # what is known of the registered model that it serves
    outdated: str | None = None  # why the status is not kept up to date; None while an operator runs


def build_view(
    obj: Json,
    pod_items: Sequence[Json],
    event_items: Sequence[Json],
    now: datetime,
    notes: Iterable[str] = (),
    *,
    outdated: str | None = None,
    pool: Pool | None = None,
    runs: Sequence[Json] = (),
) -> View:
    """Build the view from the answers of the API server. Forecasts are left out while the status is `outdated`.

    `runs`: the AnalysisRuns that the status names.
    """
    of = deployment.read_deployment(obj)
    status, runs_by_name = of.status, {run["metadata"]["name"]: run for run in runs}
    return View(
        namespace=of.namespace,
        name=of.name,
        phase=of.phase,
        step=status.get("step"),
        weight=status.get("weight"),
        ready=status.get("ready"),
        model=status.get("model"),
        endpoint=status.get("endpoint"),
        message=_message(of, runs_by_name, now, kept=outdated is None),
        clocks=tuple(_clocks(of, now)),
        revisions=tuple(_revisions(of, pod_items, pool)),
        steps=steps.list_steps(of),
        conditions=tuple(_conditions(status)),
        # Events expire after an hour, and need a permission of their own; the last decisions stay.
        events=tuple(_events(event_items) or _decisions(of)),
        analyses=tuple(analysis.read_analyses(obj, runs_by_name, now, kept=outdated is None)),
        notes=tuple(notes),
        rollback=_describe_rollback(of),
        pool=replace(pool, entries=()) if pool else None,
        registry=registered_model.describe(status),
        outdated=outdated,
    )


def format_headline(view: View) -> str:
    """One line with the state, for output that is not a terminal."""
    step = f" step {view.step}" if view.step else ""
    shares = ", ".join(
        f"{item.version or item.revision} {item.weight}% {item.ready}/{item.replicas}" for item in view.revisions
    )
    outdated = f"{view.outdated}: " if view.outdated else ""
    rollback = f"; {view.rollback}" if view.rollback else ""
    return f"{outdated}{view.phase}{step} [{shares or 'no pods'}] {view.message}{rollback}"


def to_data(value: Any) -> Any:
    """A view as data for JSON and YAML: names in camelCase, times as text, without fields that are None."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_data(asdict(value))
    if isinstance(value, dict):
        return {_camel(key): to_data(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [to_data(item) for item in value]
    return value.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else value


def _message(of: Deployment, runs: Mapping[str, Json], now: datetime, *, kept: bool) -> str:
    reference = (of.status.get("rollout") or {}).get("analysis") or {}
    return (
        of.message
        if kept and analysis.is_recent(analysis.find_run(reference, runs), now)
        else analysis.strip_forecast(of.message)
    )


def _describe_rollback(of: Deployment) -> str | None:
    if of.rolled_back_to is None or of.current is None:
        return None
    rejection = of.last_rejection(of.current)
    why = f" ({rejection.message or 'rejected'})" if rejection else ""
    return (
        f"rollback holds: revision {of.rolled_back_to} runs in place of {of.current}, which spec.model describes{why}; "
        f"ends when spec.model changes, or with `slipway undo {of.name} --to {of.current}`"
    )


def _clocks(of: Deployment, now: datetime) -> Iterator[str]:
    if not of.is_answered:
        yield "the operator has not looked at the last change of the spec yet"
    rollout = of.rollout
    if rollout is None:
        return
    yield f"attempt {rollout.attempt} of revision {rollout.revision} began {format_age(rollout.started_at, now)} ago"
    if rollout.is_rejected:
        return
    if rollout.state != FIRST and rollout.steps:
        yield f"{rollout.step_of_steps} ({rollout.state}) for {format_age(rollout.step_started_at, now)}"
    if rollout.state == CAPACITY_WAIT:
        yield f"waits for capacity for {format_age(rollout.capacity_since, now)}, in mode {rollout.capacity_mode}"
    elif rollout.state not in (PAUSED, ANALYZING) and not of.paused:
        deadline_s = of.spec.get("progressDeadlineSeconds", 600)
        yield f"last progress of pods {format_age(rollout.progress_at, now)} ago, deadline {deadline_s}s"


def _revisions(of: Deployment, pod_items: Sequence[Json], pool: Pool | None) -> Iterator[RevisionView]:
    order = {role: index for index, role in enumerate(_ROLES)}
    for item in sorted(of.revisions, key=lambda one: order.get(one.get("role", ""), len(order))):
        yield RevisionView(
            role=item.get("role", ""),
            revision=item["revision"],
            version=item.get("version"),
            weight=item.get("weight", 0),
            ready=item.get("ready", 0),
            replicas=item.get("replicas", 0),
            inflight=item.get("inflight"),
            leaves_at=item.get("scaleDownAt"),
            pods=tuple(_pods(of, item, pod_items)),
            entry=_entry(pool, of.name, item["revision"]) if pool else None,
            standby=_standby(of.status.get("standby")) if item["revision"] == of.status.get("stableRevision") else None,
        )


def _pods(of: Deployment, item: Json, pod_items: Sequence[Json]) -> list[PodRow]:
    """Those that take requests, then standby pods."""
    rows = pods.list_rows(pod_items, of.name, item["revision"], item.get("replicaSetUid"))
    return rows + (pods.list_standby_rows(pod_items, uid) if (uid := item.get("standbyUid")) else [])


def _standby(standby: Any) -> str | None:
    """A sentence about spec.standbyReplicas; None without standby pods."""
    if not isinstance(standby, dict):
        return None
    wanted, ready, serving = (standby.get(name, 0) for name in ("replicas", "ready", "serving"))
    more = f", {serving} more serve" if serving else ""
    message = f": {standby['message']}" if standby.get("message") else ""
    return f"standby {ready}/{wanted} wait{more}{message}"


def _entry(pool: Pool, name: str, revision: str) -> str:
    found = pool.entry(name, revision)
    return found.describe(pool.ready_pods) if found else "not an entry of the pool"


def _conditions(status: Json) -> Iterator[ConditionView]:
    for item in status.get("conditions") or ():
        fine = "False" if item.get("type") in _NEGATIVE else "True"
        if item.get("status") != fine:
            yield ConditionView(
                type=item.get("type", ""),
                status=item.get("status", ""),
                reason=item.get("reason", ""),
                message=item.get("message", ""),
                since=parse_time(item.get("lastTransitionTime")),
            )


def _events(items: Sequence[Json]) -> list[EventView]:
    """The last `MAX_EVENTS` Events, oldest first."""
    found = [
        EventView(
            at=parse_time(item.get("eventTime") or item.get("lastTimestamp") or item["metadata"]["creationTimestamp"]),
            type=item.get("type", ""),
            reason=item.get("reason", ""),
            message=item.get("message", ""),
            count=item.get("count") or 1,
        )
        for item in items
    ]
    return sorted(found, key=lambda event: str(event.at))[-MAX_EVENTS:]


def _decisions(of: Deployment) -> list[EventView]:
    return [
        EventView(at=item.at, type="Normal", reason=item.row, message=item.message, count=1)
        for item in of.decisions[-MAX_EVENTS:]
    ]


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
