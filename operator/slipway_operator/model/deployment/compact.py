"""The form in which a status is written, so that `kubectl describe` stays short: it prints a line for each field.

A decision and a metric of a verdict are one line each (`status_lines.py`). What an analysis counted is one packed text,
with the numbers of its verdict in it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slipway_operator.api.markers import packed_of
from slipway_operator.api.packing import Unpackable, with_packed, with_unpacked
from slipway_operator.api.v1alpha1.analysis_run import AnalysisRun
from slipway_operator.model.deployment import status_lines

Json = dict[str, Any]

ANALYSES = ("analysis", "background")  # of a rollout
_PLAIN = frozenset({"outcome", "reason", "message", "since", "metrics"})  # of a verdict
_NUMBERS = status_lines.VERDICT_NUMBERS
_RUN = packed_of(AnalysisRun)
_COUNTERS = replace(_RUN, names=(_NUMBERS, *_RUN.names))


def compact(status: Json) -> Json:
    """A copy of a rendered status in the form in which it is written."""
    runs = _each_run(status, lambda _, run: packed_run(_each_metric(run, status_lines.metric_line)))
    return _each(runs, "decisions", status_lines.decision_line)


def expanded(status: Json) -> tuple[Json, tuple[str, ...]]:
    """A copy of a written `.status` as its types describe it, and the paths of packed texts that cannot be read."""
    lost: list[str] = []

    def expanded_run(name: str, run: Json) -> Json:
        try:
            run = unpacked_run(run)
        except Unpackable:
            lost.append(f"rollout.{name}.{_COUNTERS.field}")
        return _each_metric(run, status_lines.metric_fields)

    return _each(_each_run(status, expanded_run), "decisions", status_lines.decision_fields), tuple(lost)


def packed_run(run: Json) -> Json:
    """A copy of an analysis with its counters and the numbers of its verdict as one text."""
    verdict = run.get("verdict")
    if not isinstance(verdict, dict):
        return with_packed(run, _COUNTERS)
    numbers = {name: item for name, item in verdict.items() if name not in _PLAIN}
    plain = {name: item for name, item in verdict.items() if name in _PLAIN}
    return with_packed(run | {"verdict": plain} | ({_NUMBERS: numbers} if numbers else {}), _COUNTERS)


def unpacked_run(run: Json) -> Json:
    """The analysis as it was before `packed_run`; that of an earlier release has the numbers in place.

    Raises:
        Unpackable: when its text is no packed object.
    """
    whole = with_unpacked(run, _COUNTERS)
    numbers, verdict = whole.pop(_NUMBERS, None), whole.get("verdict")
    if not isinstance(numbers, dict) or not isinstance(verdict, dict):
        return whole
    return whole | {"verdict": numbers | verdict}


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
