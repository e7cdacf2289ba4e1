"""What a revision went through, as the operator records it beside the revision: it outlives a lost status."""

import json
import re
from dataclasses import asdict, dataclass

from slipway_operator.model import labels

ANNOTATION = f"{labels.GROUP}/history"  # of a ControllerRevision
_NUMBER = "(0|[1-9][0-9]{0,12})"  # of a generation; attempts have fewer digits
_WRITTEN = re.compile(f'{{"attempts": {_NUMBER}, "promoted": {_NUMBER}, "rejected": {_NUMBER}}}')


@dataclass(frozen=True, slots=True)
class History:
    """Numbers that only grow."""

    attempts: int = 0  # number of its last attempt; 0: none began
    promoted: int = 0  # generation of the route table that it was last stable in first: stable has the highest; 0: none
    rejected: int = 0  # number of its last rejected attempt; 0: none


UNKNOWN = History()  # of a revision without attempts, or whose record is lost


def parse(text: str | None) -> History:
    """Parse the annotation; without one that `render` wrote, nothing is known."""
    found = _WRITTEN.fullmatch(text or "")
    return History(*map(int, found.groups())) if found else UNKNOWN


def render(history: History) -> str:
    """Return the JSON text of the annotation."""
    return json.dumps(asdict(history), sort_keys=True)
