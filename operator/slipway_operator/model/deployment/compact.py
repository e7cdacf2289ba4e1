"""The form in which a status is written, so that `kubectl describe` stays short: it prints a line for each field.

A decision and a metric of a verdict are one line each (`status_lines.py`). What an analysis counted is one packed text.
"""

from collections.abc import Callable
from typing import Any

from slipway_operator.api.markers import packed_of
from slipway_operator.api.packing import Unpackable, with_packed, with_unpacked
from slipway_operator.api.v1alpha1.analysis_run import AnalysisRun
from slipway_operator.model.deployment import status_lines

Json = dict[str, Any]

ANALYSES = ("analysis", "background")  # of a rollout
_PACKED = packed_of(AnalysisRun)


def compact(status: Json) -> Json:
    """A copy of a rendered status in the form in which it is written."""
    return _each(_each_run(status, _compact_run), "decisions", status_lines.decision_line)


def expanded(status: Json) -> tuple[Json, tuple[str, ...]]:
    """A copy of a written `.status` as its types describe it, and the paths of packed texts that cannot be read."""
    lost: list[str] = []

    def expanded_run(name: str, run: Json) -> Json:
        try:
            run = with_unpacked(run, _PACKED)
        except Unpackable:
            lost.append(f"rollout.{name}.{_PACKED.field}")
        return _each_metric(run, status_lines.metric_fields)

    return _each(_each_run(status, expanded_run), "decisions", status_lines.decision_fields), tuple(lost)


def _compact_run(_: str, run: Json) -> Json:
    return with_packed(_each_metric(run, status_lines.metric_line), _PACKED)


def _each_run(status: Json, change: Callable[[str, Json], Json]) -> Json:
    if not isinstance(rollout := status.get("rollout"), dict):
        return status
    runs = {name: change(name, run) for name in ANALYSES if isinstance(run := rollout.get(name), dict)}
    return status | {"rollout": rollout | runs}


def _each_metric(run: Json, change: Callable[[Any], object]) -> Json:
    verdict = run.get("verdict")
    return run | {"verdict": _each(verdict, "metrics", change)} if isinstance(verdict, dict) else run


def _each(whole: Json, name: str, change: Callable[[Any], object]) -> Json:
    """A copy with each item of one list in it changed, if it is there."""
    return whole | {name: [change(item) for item in part]} if isinstance(part := whole.get(name), list) else whole
