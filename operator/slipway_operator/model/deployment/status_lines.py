"""Lines of the status: `TIME ROW: MESSAGE (TYPE REASON)` for a decision, without the parentheses if it has no Event.

The command line imports this module too, so it needs nothing but the standard library.
"""

import re
from typing import Any

Json = dict[str, Any]

_DECISION = re.compile(
    r"(?P<at>\S+) (?P<row>\S+): (?P<message>.*?)(?: \((?P<type>Normal|Warning) (?P<reason>\w+)\))?", re.DOTALL
)


def decision_line(fields: Json) -> str:
    """Return the line of a decision."""
    event = f" ({fields['type']} {fields['reason']})" if fields.keys() >= {"type", "reason"} else ""
    return f"{fields['at']} {fields['row']}: {fields['message']}{event}"


def decision_fields(line: object) -> object:
    """Parse the line of a decision to its fields; return anything else unchanged."""
    found = _DECISION.fullmatch(line) if isinstance(line, str) else None
    return {name: part for name, part in found.groupdict().items() if part is not None} if found else line
