"""The form in which a status is written, so that `kubectl describe` stays short: it prints a line for each field.

A decision and a metric of a verdict are one line each (`status_lines.py`). What an analysis counted is one packed text,
and so are the numbers of its verdict.
"""

from collections.abc import Callable
from typing import Any

from slipway_operator.api.markers import PackedFields, packed_of
from slipway_operator.api.packing import Unpackable, with_packed, with_unpacked
from slipway_operator.api.v1alpha1.analysis_run import AnalysisRun, RunVerdict
from slipway_operator.model.deployment import status_lines

Json = dict[str, Any]

ANALYSES = ("analysis", "background")  # of a rollout
_COUNTERS, _NUMBERS = packed_of(AnalysisRun), packed_of(RunVerdict)


def compact(status: Json) -> Json:
    """A copy of a rendered status in the form in which it is written."""
    return _each(_each_run(status, _compact_run), "decisions", status_lines.decision_line)


def expanded(status: Json) -> tuple[Json, tuple[str, ...]]:
    """A copy of a written `.status` as its types describe it, and the paths of packed texts that cannot be read."""
    lost: list[str] = []

    def unpacked(part: Json, fields: PackedFields, path: str) -> Json:
        try:
            return with_unpacked(part, fields)
        except Unpackable:
            lost.append(f"{path}.{fields.field}")
            return part

    def expanded_run(name: str, run: Json) -> Json:
        run = unpacked(run, _COUNTERS, f"rollout.{name}")
        whole = _of_verdict(run, lambda verdict: unpacked(verdict, _NUMBERS, f"rollout.{name}.verdict"))
        return _each_metric(whole, status_lines.metric_fields)

    return _each(_each_run(status, expanded_run), "decisions", status_lines.decision_fields), tuple(lost)


def _compact_run(_: str, run: Json) -> Json:
    lines = _each_metric(run, status_lines.metric_line)
    return with_packed(_of_verdict(lines, lambda verdict: with_packed(verdict, _NUMBERS)), _COUNTERS)


def _each_run(status: Json, change: Callable[[str, Json], Json]) -> Json:
    if not isinstance(rollout := status.get("rollout"), dict):
        return status
    runs = {name: change(name, run) for name in ANALYSES if isinstance(run := rollout.get(name), dict)}
    return status | {"rollout": rollout | runs}


def _each_metric(run: Json, change: Callable[[Any], object]) -> Json:
    return _of_verdict(run, lambda verdict: _each(verdict, "metrics", change))


def _of_verdict(run: Json, change: Callable[[Json], Json]) -> Json:
    verdict = run.get("verdict")
    return run | {"verdict": change(verdict)} if isinstance(verdict, dict) else run


def _each(whole: Json, name: str, change: Callable[[Any], object]) -> Json:
    """A copy with each item of one list in it changed, if it is there."""
    return whole | {name: [change(item) for item in part]} if isinstance(part := whole.get(name), list) else whole
