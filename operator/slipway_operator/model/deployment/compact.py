"""The form in which a status is written, so that `kubectl describe` stays short: it prints a line for each field.

- A decision is one line, `TIME ROW: MESSAGE (TYPE REASON)`, without the last where no Event has it.
- A metric of a verdict is one line:
  `errors Undecided: 2 of 85 bad (2.35%), stable 1 of 235 (0.43%); evidence 0.745 of 100; needs 98`.
- What an analysis counted is one packed text.
"""

import re
from collections.abc import Callable
from typing import Any

from slipway_operator.api.markers import packed_of
from slipway_operator.api.packing import Unpackable, with_packed, with_unpacked
from slipway_operator.api.v1alpha1.analysis_run import AnalysisRun

Json = dict[str, Any]

ANALYSES = ("analysis", "background")  # of a rollout
_PACKED = packed_of(AnalysisRun)

_DECISION = re.compile(
    r"(?P<at>\S+) (?P<row>\S+): (?P<message>.*?)(?: \((?P<type>Normal|Warning) (?P<reason>\w+)\))?", re.DOTALL
)
_METRIC = re.compile(
    r"(?P<name>.+) (?P<finding>\w+): "
    r"(?P<canaryBad>\d{1,19}) of (?P<canarySamples>\d{1,19}) bad(?: \((?P<canaryRate>[^)]*)\))?, "
    r"stable (?P<stableBad>\d{1,19}) of (?P<stableSamples>\d{1,19})(?: \((?P<stableRate>[^)]*)\))?; "
    r"evidence (?P<evidence>\S+) of (?P<threshold>[^;]+)(?:; needs (?P<needed>\d{1,19}))?",
    re.DOTALL,
)
_NUMBERS = ("canaryBad", "canarySamples", "stableBad", "stableSamples", "needed")


def compact(status: Json) -> Json:
    """A copy of a rendered status in the form in which it is written."""
    return _each(_each_run(status, _compact_run), "decisions", _decision_line)


def expanded(status: Json) -> tuple[Json, tuple[str, ...]]:
    """A copy of a written `.status` as its types describe it, and the paths of packed texts that cannot be read."""
    lost: list[str] = []

    def expanded_run(name: str, run: Json) -> Json:
        try:
            run = with_unpacked(run, _PACKED)
        except Unpackable:
            lost.append(f"rollout.{name}.{_PACKED.field}")
        return _each_metric(run, _metric_fields)

    return _each(_each_run(status, expanded_run), "decisions", _decision_fields), tuple(lost)


def _compact_run(_: str, run: Json) -> Json:
    return with_packed(_each_metric(run, _metric_line), _PACKED)


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


def _decision_line(fields: Json) -> str:
    event = f" ({fields['type']} {fields['reason']})" if fields.keys() >= {"type", "reason"} else ""
    return f"{fields['at']} {fields['row']}: {fields['message']}{event}"


def _decision_fields(line: object) -> object:
    return _fields(_DECISION, line)


def _metric_line(fields: Json) -> str:
    needs = f"; needs {fields['needed']}" if "needed" in fields else ""
    return (
        f"{fields['name']} {fields['finding']}: {_side(fields, 'canary', ' bad')}, stable {_side(fields, 'stable')}; "
        f"evidence {fields['evidence']} of {fields['threshold']}{needs}"
    )


def _metric_fields(line: object) -> object:
    found = _fields(_METRIC, line)
    if not isinstance(found, dict) or found is line:
        return found
    return found | {name: int(found[name]) for name in _NUMBERS if name in found}


def _side(fields: Json, side: str, bad: str = "") -> str:
    rate = f" ({fields[f'{side}Rate']})" if f"{side}Rate" in fields else ""
    return f"{fields[f'{side}Bad']} of {fields[f'{side}Samples']}{bad}{rate}"


def _fields(pattern: re.Pattern[str], line: object) -> object:
    """The fields of a line; what is no such line, as it is."""
    found = pattern.fullmatch(line) if isinstance(line, str) else None
    return {name: part for name, part in found.groupdict().items() if part is not None} if found else line
