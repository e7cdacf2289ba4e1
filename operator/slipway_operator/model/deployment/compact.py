"""The form in which a status is written, so that `kubectl describe` stays short: it prints a line for each field.

A decision and a metric of a verdict are one line each (`status_lines.py`). The counters of an analysis and the numbers
of its verdict are one packed text.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slipway_contracts.api.markers import packed_of
from slipway_operator.api.packing import Unpackable, with_packed, with_unpacked
from slipway_operator.api.v1alpha1.analysis_run import AnalysisRun
from slipway_operator.model.deployment import status_lines

Json = dict[str, Any]

ANALYSES = ("analysis", "background")  # fields of status.rollout
_PLAIN = frozenset({"outcome", "reason", "message", "since", "metrics"})  # fields of a verdict that are not packed
_NUMBERS = status_lines.VERDICT_NUMBERS
_RUN = packed_of(AnalysisRun)
_COUNTERS = replace(_RUN, names=(_NUMBERS, *_RUN.names))


def compact(status: Json) -> Json:
    """Return a copy of a rendered status in the compact form that is written to the API server."""
    runs = _each_run(status, lambda _, run: packed_run(_each_metric(run, status_lines.metric_line)))
    return _each(runs, "decisions", status_lines.decision_line)


def expanded(status: Json) -> tuple[Json, tuple[str, ...]]:
    """Return a copy of a written `.status` with all fields unpacked, and the paths of unreadable packed texts."""
    lost: list[str] = []

    def expanded_run(name: str, run: Json) -> Json:
        try:
            run = unpacked_run(run)
        except Unpackable:
            lost.append(f"rollout.{name}.{_COUNTERS.field}")
        return _each_metric(run, status_lines.metric_fields)

    return _each(_each_run(status, expanded_run), "decisions", status_lines.decision_fields), tuple(lost)


def packed_run(run: Json) -> Json:
    """Return a copy of an analysis run with its counters and the numbers of its verdict as one packed text."""
    verdict = run.get("verdict")
    if not isinstance(verdict, dict):
        return with_packed(run, _COUNTERS)
    numbers = {name: item for name, item in verdict.items() if name not in _PLAIN}
    plain = {name: item for name, item in verdict.items() if name in _PLAIN}
    return with_packed(run | {"verdict": plain} | ({_NUMBERS: numbers} if numbers else {}), _COUNTERS)


def unpacked_run(run: Json) -> Json:
    """Return the analysis run as it was before `packed_run`. Earlier releases did not pack numbers: these stay.

    Raises:
        Unpackable: when the packed text cannot be read.
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
    """Return a copy in which `change` was applied to each item of the list `name`, if there is one."""
    return whole | {name: [change(item) for item in part]} if isinstance(part := whole.get(name), list) else whole
