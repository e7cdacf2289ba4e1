"""A ModelDeployment's status: the operator's complete persistent state."""

import re
from typing import Any

from slipway_operator.api.fitting import fitted
from slipway_operator.api.markers import packed_of
from slipway_operator.api.packing import Unpackable, with_packed, with_unpacked
from slipway_operator.api.reading import UnreadableObject, encoded, read, read_parts
from slipway_operator.api.v1alpha1.analysis_run import AnalysisRun
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model import wire

ANALYSES = ("analysis", "background")  # of a rollout
_PACKED = packed_of(AnalysisRun)
# TIME ROW: MESSAGE (TYPE REASON); without the last where no Event has it.
_DECISION = re.compile(
    r"(?P<at>\S+) (?P<row>\S+): (?P<message>.*?)(?: \((?P<type>Normal|Warning) (?P<reason>\w+)\))?", re.DOTALL
)


def parse(value: dict[str, Any] | None) -> Status:
    """Read `.status`; an absent one gives that of a new object."""
    return parse_parts(value)[0]


def parse_parts(value: dict[str, Any] | None) -> tuple[Status, tuple[str, ...]]:
    """Read `.status`, and the paths of its invalid parts.

    Only these parts count as lost: others than the operator may write the status, and no write may stop the operator.
    """
    given, lost = unpacked(value if isinstance(value, dict) else {})
    if isinstance(lines := given.get("decisions"), list):
        given["decisions"] = [_of_line(line) for line in lines]
    try:
        return read(Status, encoded(given)), lost
    except UnreadableObject:
        status, others = _rest(given)
        return status, (*lost, *others)


def unpacked(status: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A copy of the status with the fields of its analyses, and the paths of packed texts that cannot be read."""
    rollout, lost = status.get("rollout"), []
    if not isinstance(rollout, dict):
        return dict(status), ()
    made = dict(rollout)
    for name in ANALYSES:
        try:
            if isinstance(run := rollout.get(name), dict):
                made[name] = with_unpacked(run, _PACKED)
        except Unpackable:
            lost.append(f"rollout.{name}.{_PACKED.field}")
    return {**status, "rollout": made}, tuple(lost)


def _rest(given: dict[str, Any]) -> tuple[Status, tuple[str, ...]]:
    """The readable parts of a status that cannot be read as a whole."""
    try:
        return read_parts(Status, given)
    except UnreadableObject:  # no JSON at all, which no API server sends
        return Status(), ("status",)


def render(status: Status) -> dict[str, Any]:
    """The complete `.status`, which replaces the former one; texts beyond the API's limits are cut."""
    written = wire.to_json(status)
    if decisions := written.get("decisions"):
        written["decisions"] = [_to_line(decision) for decision in decisions]
    rendered: dict[str, Any] = fitted(Status, written)
    if rollout := rendered.get("rollout"):
        runs = {name: with_packed(rollout[name], _PACKED) for name in ANALYSES if name in rollout}
        rendered["rollout"] = rollout | runs
    return rendered


def _to_line(decision: dict[str, Any]) -> str:
    told = f" ({decision['type']} {decision['reason']})" if "reason" in decision else ""
    return f"{decision['at']} {decision['row']}: {decision['message']}{told}"


def _of_line(line: object) -> object:
    """The fields of a decision; what is no such line is no decision either."""
    found = _DECISION.fullmatch(line) if isinstance(line, str) else None
    return {name: part for name, part in found.groupdict().items() if part is not None} if found else line
