"""What `slipway status` shows: objects of the API become lines of a tree; pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime
from typing import Any

from slipway_cli import analysis, deployment, pods, steps
from slipway_cli.analysis import AnalysisView
from slipway_cli.deployment import ANALYZING, CAPACITY_WAIT, FIRST, PAUSED, Deployment, Json
from slipway_cli.moments import parse_time, since
from slipway_cli.pods import PodRow
from slipway_cli.steps import StepLine

MAX_EVENTS = 6
_ROLES = ("canary", "baseline", "stable", "old")
# Conditions that are bad news when they are True; all others are when they are not.
_NEGATIVE = ("ForeignObjects", "NameConflict", "Stalled", "UnknownField")


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
    """Something that happened."""

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
    clocks: tuple[str, ...]  # what is awaited since when
    revisions: tuple[RevisionView, ...]
    steps: tuple[StepLine, ...]
    conditions: tuple[ConditionView, ...]
    events: tuple[EventView, ...]
    analyses: tuple[AnalysisView, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be read, and why
    outdated: str | None = None  # why nobody keeps the status up to date; None while somebody does


def build(
    obj: Json,
    pod_items: Sequence[Json],
    event_items: Sequence[Json],
    now: datetime,
    notes: Iterable[str] = (),
    *,
    outdated: str | None = None,
) -> View:
    """Put together what the API server answered. Forecasts are left out while the status is `outdated`."""
    of = deployment.read(obj)
    status = of.status
    return View(
        namespace=of.namespace,
        name=of.name,
        phase=of.phase,
        step=status.get("step"),
        weight=status.get("weight"),
        ready=status.get("ready"),
        model=status.get("model"),
        endpoint=status.get("endpoint"),
        message=_message(of, now, kept=outdated is None),
        clocks=tuple(_clocks(of, now)),
        revisions=tuple(_revisions(of, pod_items)),
        steps=steps.lines(of),
        conditions=tuple(_conditions(status)),
        # Events are forgotten after an hour, and not everybody may read them; the last decisions stay.
        events=tuple(_events(event_items) or _decisions(status)),
        analyses=tuple(analysis.views(status.get("rollout") or {}, now, kept=outdated is None)),
        notes=tuple(notes),
        outdated=outdated,
    )


def headline(view: View) -> str:
    """One line of where it is, for output that nobody looks at live."""
    step = f" step {view.step}" if view.step else ""
    shares = ", ".join(
        f"{item.version or item.revision} {item.weight}% {item.ready}/{item.replicas}" for item in view.revisions
    )
    outdated = f"{view.outdated}: " if view.outdated else ""
    return f"{outdated}{view.phase}{step} [{shares or 'no pods'}] {view.message}"


def as_data(value: Any) -> Any:
    """A view as JSON and YAML take it."""
    if is_dataclass(value) and not isinstance(value, type):
        return as_data(asdict(value))
    if isinstance(value, dict):
        return {_camel(key): as_data(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [as_data(item) for item in value]
    return value.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else value


def _message(of: Deployment, now: datetime, *, kept: bool) -> str:
    run = (of.status.get("rollout") or {}).get("analysis") or {}
    return of.message if kept and analysis.is_recent(run, now) else analysis.without_forecast(of.message)


def _clocks(of: Deployment, now: datetime) -> Iterator[str]:
    if not of.is_answered:
        yield "the operator has not looked at the last change of the spec yet"
    rollout = of.rollout
    if rollout is None:
        return
    yield f"attempt {rollout.attempt} of revision {rollout.revision} began {since(rollout.started_at, now)} ago"
    if rollout.is_rejected:
        return
    if rollout.state != FIRST and rollout.steps:
        yield f"{rollout.step_of_steps} ({rollout.state}) for {since(rollout.step_started_at, now)}"
    if rollout.state == CAPACITY_WAIT:
        yield f"waits for capacity for {since(rollout.capacity_since, now)}, in mode {rollout.capacity_mode}"
    elif rollout.state not in (PAUSED, ANALYZING) and not of.paused:
        deadline_s = of.spec.get("progressDeadlineSeconds", 600)
        yield f"last progress of pods {since(rollout.progress_at, now)} ago, deadline {deadline_s}s"


def _revisions(of: Deployment, pod_items: Sequence[Json]) -> Iterator[RevisionView]:
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
            pods=tuple(pods.rows(pod_items, of.name, item["revision"], item.get("replicaSetUid"))),
        )


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
    """The last ones, oldest first."""
    found = [
        EventView(
            at=parse_time(item.get("lastTimestamp") or item.get("eventTime") or item["metadata"]["creationTimestamp"]),
            type=item.get("type", ""),
            reason=item.get("reason", ""),
            message=item.get("message", ""),
            count=item.get("count") or 1,
        )
        for item in items
    ]
    return sorted(found, key=lambda event: str(event.at))[-MAX_EVENTS:]


def _decisions(status: Json) -> list[EventView]:
    return [
        EventView(at=parse_time(item.get("at")), type="Normal", reason=item["row"], message=item["message"], count=1)
        for item in (status.get("decisions") or ())[-MAX_EVENTS:]
    ]


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
