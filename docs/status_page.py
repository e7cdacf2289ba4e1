"""The page docs/status.md: phases, states, conditions with their reasons, and Events."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from slipway_operator.api.v1alpha1.status import Phase, State
from slipway_operator.planning.conditions.table import TABLE
from slipway_operator.planning.facts import causes

ROOT = Path(__file__).resolve().parents[1]
WORDS = ROOT / "docs" / "status.yaml"
DESCRIBE = ROOT / "docs" / "recordings" / "describe.txt"  # tests/crds/test_describe.py compares it with kubectl's
SOURCES = ROOT / "operator" / "slipway_operator"

_HEADER = """\
# Status of a ModelDeployment

Generated from `docs/status.yaml` and the operator's source by `python docs/generate.py`; do not edit.

Every phase, condition, reason and Event, with its meaning:
```
kubectl describe mdep NAME
```
In an analysis it prints for example this, with `…` for what is left out here. Numbers of an analysis are in
its AnalysisRun ([analyses](judge.md#analysisruns)), and no defaults are printed that a manifest does not have.
```
{describe}```
[The CRD reference](crd.md) has the fields of the status, [rollouts](rollouts.md) the transitions between states.
"""
_CAUSES = """\
## Causes

Why a revision lacks pods. The message names a pod, contains Kubernetes' own message, and says what to do;
[troubleshooting](troubleshooting.md) has a section for each.
"""
_WITHOUT_PROBLEM = """\
Without a problem it is the state of the rollout; while pods download the model, `Fetching` and the percentage of the
pod that has least, for example `Fetching 43 %`; of an analysis the expected time, for example `Analyzing, 4 min left`,
and of a ramp's bake its end, `Baking until 16:20 UTC`."""


def page() -> str:
    """The whole page.

    Raises:
        LookupError: when the words and the source do not name the same phases, conditions, causes or Events.
    """
    words: dict[str, Any] = yaml.load(WORDS.read_text(), yaml.CSafeLoader)
    _same("phase", set(words["phases"]), {str(phase) for phase in Phase})
    _same("Event", set(words["events"]), set(events()))
    _same("condition", set(words["conditions"]), {kind.name for kind in TABLE})
    _same("cause", set(words["causes"]), set(causes.REASONS))
    header = _HEADER.format(describe=DESCRIBE.read_text())
    return "\n".join([header, *_phases(words), *_conditions(words), *_causes(words), *_events(words)]) + "\n"


def events() -> dict[str, str]:
    """Reason of each Event that the source creates → its type."""
    texts = (path.read_text() for path in sorted(SOURCES.rglob("*.py")))
    calls = (
        node
        for text in texts
        if "Event(" in text  # most files create none, and need no parsing
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    )
    return dict(sorted(found for call in calls if (found := _created(call))))


def _created(call: ast.Call) -> tuple[str, str] | None:
    """(reason, type) of `Event(type, reason, message)`."""
    texts = [item.value for item in call.args[:2] if isinstance(item, ast.Constant)]
    if not isinstance(call.func, ast.Name) or call.func.id != "Event" or len(texts) < 2:
        return None
    kind, reason = map(str, texts)
    return reason, kind


def _same(what: str, written: set[str], found: set[str]) -> None:
    if written != found:
        raise LookupError(f"{WORDS.name}: {what} without words: {found - written}; words without: {written - found}")


def _phases(words: dict[str, Any]) -> Iterator[str]:
    yield "## Phases\n\n`status.phase` is a one-word summary for people; no decision uses it.\n"
    yield "| phase | when |\n|---|---|"
    yield from (f"| {phase} | {when} |" for phase, when in words["phases"].items())
    states = ", ".join(f"`{state}`" for state in State)
    yield f"\n`status.rollout.state` is the state of a rollout: {states}. Without a rollout it is absent.\n"


def _conditions(words: dict[str, Any]) -> Iterator[str]:
    yield f"## Conditions\n\n{_normal_states()}\n{_ranks()}\n"
    yield "| condition | `True` means | reason | meaning |\n|---|---|---|---|"
    for kind in (item.name for item in TABLE):
        entry = words["conditions"][kind]
        for index, (reason, meaning) in enumerate(entry["reasons"].items()):
            head = f"`{kind}` | {entry['says']}" if index == 0 else " | "
            yield f"| {head} | {reason} | {meaning} |"
        if entry.get("causes"):
            yield "|  |  | *a cause* | One of [those below](#causes). |"
    yield ""


def _normal_states() -> str:
    bad = _listed(kind.name for kind in TABLE if kind.bad_when == "True")
    summing = _listed(kind.name for kind in TABLE if kind.bad_when == "Never")
    return (
        f"All are `True` in the normal state, except {bad}, which exist only while something is wrong, and {summing}, "
        "which sum up the others for [tools that wait for an apply](gitops.md)."
    )


def _ranks() -> str:
    ranked = sorted((kind.rank, kind.name) for kind in TABLE if kind.rank is not None)
    silent = _listed(kind.name for kind in TABLE if kind.rank is None)
    return (
        "`status.reason`, the column REASON, is the reason of the first of these with a problem, the most specific "
        f"first: {', '.join(name for _, name in ranked)}. It shows none of {silent}.\n{_WITHOUT_PROBLEM}"
    )


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _causes(words: dict[str, Any]) -> Iterator[str]:
    yield _CAUSES
    yield "| reason | meaning |\n|---|---|"
    yield from (f"| `{reason}` | {meaning} |" for reason, meaning in words["causes"].items())
    yield ""


def _events(words: dict[str, Any]) -> Iterator[str]:
    types = events()
    yield "## Events\n\nOn transitions only; a repeated Event increases its count.\n"
    yield "| reason | type | meaning |\n|---|---|---|"
    yield from (f"| `{reason}` | {types[reason]} | {meaning} |" for reason, meaning in words["events"].items())
