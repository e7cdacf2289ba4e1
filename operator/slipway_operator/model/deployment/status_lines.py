"""Lines of the status: one for a decision, one for a metric of a verdict.

- A decision: `TIME ROW: MESSAGE (TYPE REASON)`, without the parentheses if it has no Event.
- A metric: `errors Undecided: 2 of 85 bad (2.35%), stable 1 of 235 (0.43%); evidence 0.745 of 100; needs 98`.

The command line imports this module too, so it needs nothing but the standard library.
"""

import re
from typing import Any

Json = dict[str, Any]

VERDICT_NUMBERS = "verdictNumbers"  # key in the packed counters of an analysis: the numbers of its verdict

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


def decision_line(fields: Json) -> str:
    """Return the line of a decision."""
    event = f" ({fields['type']} {fields['reason']})" if fields.keys() >= {"type", "reason"} else ""
    return f"{fields['at']} {fields['row']}: {fields['message']}{event}"


def decision_fields(line: object) -> object:
    """Parse the line of a decision to its fields; return anything else unchanged."""
    return _fields(_DECISION, line)


def metric_line(fields: Json) -> str:
    """Return the line of a metric of a verdict."""
    needs = f"; needs {fields['needed']}" if "needed" in fields else ""
    return (
        f"{fields['name']} {fields['finding']}: {_side(fields, 'canary', ' bad')}, stable {_side(fields, 'stable')}; "
        f"evidence {fields['evidence']} of {fields['threshold']}{needs}"
    )


def metric_fields(line: object) -> object:
    """Parse the line of a metric to its fields; return anything else unchanged."""
    found = _fields(_METRIC, line)
    if not isinstance(found, dict) or found is line:
        return found
    return found | {name: int(found[name]) for name in _NUMBERS if name in found}


def _side(fields: Json, side: str, bad: str = "") -> str:
    rate = f" ({fields[f'{side}Rate']})" if f"{side}Rate" in fields else ""
    return f"{fields[f'{side}Bad']} of {fields[f'{side}Samples']}{bad}{rate}"


def _fields(pattern: re.Pattern[str], line: object) -> object:
    found = pattern.fullmatch(line) if isinstance(line, str) else None
    return {name: part for name, part in found.groupdict().items() if part is not None} if found else line
