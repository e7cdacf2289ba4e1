"""Whether the metrics of engines that autoscalers need are read: the condition EngineMetricsAvailable.

Sleep needs none of them: gateways count requests, so an engine without metrics can scale to zero too.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import MetricsPage
from slipway_operator.model.deployment.autoscaling import OWN_NAMES
from slipway_operator.model.engine_types import metrics_of
from slipway_operator.model.inputs.pod_inputs import Engine
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type
from slipway_operator.planning.facts.situation import Situation

_TTFT = ("ttft", "waiting", "running")  # without a first token, only an empty queue shows that there was no request
# What an engine must export for each metric of the metrics API; docs/autoscaling.md describes these.
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "slipway_queue_depth": ("waiting",),
    "slipway_requests_running": ("running",),
    "slipway_tokens_per_second": ("tokens",),
    "slipway_kv_cache_usage": ("kv_usage",),
    "slipway_ttft_p95_seconds": _TTFT,
    "slipway_ttft_p95_replica_seconds": _TTFT,
}
_FIELDS = {
    "waiting": "queued",
    "running": "running",
    "tokens": "generatedTokens",
    "kv_usage": "kvCacheUsage",
    "ttft": "timeToFirstToken",
}
_ABSENT = {
    "vllm": "remove --disable-log-stats from spec.engine.args, or use a version that exports it",
    "sglang": "it is there from the first request on; if not, use a version that exports it",
}
STARTING, NO_READY_PODS = "Starting", "NoReadyPods"
Needed = Mapping[str, str]  # field of EngineMetrics → the metric and the autoscaler that need it
Problem = tuple[str, str]  # reason, message


@condition_type("EngineMetricsAvailable", rank=100, event=None, starting=frozenset({STARTING, NO_READY_PODS}))
def engine_metrics_available(facts: ConditionFacts) -> ConditionState | None:
    """Where an autoscaler needs metrics of engines that this operator serves; else nothing."""
    course, at = facts.course, facts.at
    pages, needed = at.observed.pages, _needed(at)
    if pages is None or not needed:
        return None
    if at.asleep:
        return ConditionState(True, "Asleep", "it has no pods until the next request")
    live = [name for name in (course.stable, course.target) if name]
    problems = [*_unnamed(live, needed, at), *_unread(pages, at), *_missing(pages, needed, at)]
    if problems:
        (reason, message), others = problems[0], len(problems) - 1
        return ConditionState(False, reason, f"{message}; and {others} more such problems" if others else message)
    if not pages:
        ready = any(at.ready(name) for name in live)
        reason, text = (STARTING, "is read within seconds") if ready else (NO_READY_PODS, "is read once it is ready")
        return ConditionState(None, reason, f"the first pod {text}")
    text = f"every ready pod exports what is needed: {', '.join(dict.fromkeys(needed.values()))}"
    return ConditionState(True, "MetricsRead", text)


def _needed(at: Situation) -> dict[str, str]:
    """For each needed field of EngineMetrics, what needs it first: a metric of spec.autoscaling or another scaler."""
    found: dict[str, str] = {}
    if at.spec.autoscaling and at.spec.autoscaling.objective:
        for field in ("waiting", "running"):
            found.setdefault(field, "the objective of spec.autoscaling")
    for metric in at.spec.autoscaling.metrics if at.spec.autoscaling else ():
        for field in _NEEDS.get(OWN_NAMES.get(metric.type, ""), ()):
            found.setdefault(field, f"{metric.type} of spec.autoscaling")
    for scaler in at.observed.autoscalers:
        for name in _names(scaler.spec) if scaler.aims_here and not scaler.ours else ():
            for field in _NEEDS.get(name, ()):
                found.setdefault(field, f"{name} of HorizontalPodAutoscaler {scaler.name}")
    return found


def _names(spec: Mapping[str, Any]) -> Iterator[str]:
    """The names of the metrics of a HorizontalPodAutoscaler, whose API server has checked its shape."""
    for metric in spec.get("metrics") or ():
        source = metric.get(str(metric.get("type", "")).lower()) or {}
        if name := (source.get("metric") or {}).get("name"):
            yield str(name)


def _unnamed(live: Iterable[str], needed: Needed, at: Situation) -> Iterator[Problem]:
    """Problems of custom engines whose spec names no metric for a needed field: no metrics page can have it."""
    for revision in live:
        engine = _engine(revision, at)
        for field, why in needed.items() if engine else ():
            if engine and not metrics_of(engine).of(field):
                text = f"{why} needs a metric that revision {revision} does not name: write "
                where = f"spec.engine.custom.metrics.{_FIELDS[field]}, or scale on InFlight, which gateways count"
                yield "MetricMissing", text + where


def _unread(pages: Iterable[MetricsPage], at: Situation) -> Iterator[Problem]:
    for page in pages:
        if page.problem:
            engine = _engine(page.revision, at)
            custom = engine is not None and engine.type == "custom"
            path = "correct spec.engine.custom.metricsPath, or " if custom else ""
            remedy = f"{path}let the operator connect to port 8000 of the pod"
            yield "ScrapeFailed", f"pod {page.pod}: {page.problem}; {remedy}"


def _missing(pages: Iterable[MetricsPage], needed: Needed, at: Situation) -> Iterator[Problem]:
    for page in pages:
        engine = _engine(page.revision, at)
        for field, name in page.missing:
            if field in needed and engine:
                remedy = _ABSENT.get(engine.type, "use a version of the server that exports it")
                if engine.type == "custom":
                    remedy = f"correct spec.engine.custom.metrics.{_FIELDS[field]}"
                path = metrics_of(engine).path
                yield "MetricMissing", f"pod {page.pod} has no {name} on {path}, for {needed[field]}: {remedy}"


def _engine(revision: str, at: Situation) -> Engine | None:
    """The engine of a revision; for a new one it is read from the spec until its record exists."""
    runs = labels.what_runs(revision)
    snapshot = at.observed.snapshots.get(runs)
    inputs = snapshot.inputs if snapshot else at.spec.inputs if runs == at.current else None
    return inputs.engine if inputs else None


TYPES = (engine_metrics_available,)
