"""Fields of an applied manifest that the API server dropped, because the schema does not have them.

`kubectl apply` refuses them; with --validate=false, and with older clients, the API server prunes them.
"""

import difflib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment import last_applied
from slipway_operator.model.deployment.spec_fields import FIELDS
from slipway_operator.planning.facts.conditions import UNKNOWN_FIELD, condition

MOST = 5  # fields that are named
LONGEST = 64  # characters of a name that are shown and compared

# Names below each path; a path that is not here is a value, or a map with arbitrary keys.
_BELOW: defaultdict[str, set[str]] = defaultdict(set)
for _path in FIELDS:
    _parent, _, _name = _path.rpartition(".")
    _BELOW[_parent].add(_name)


def conditions(obj: Json, now: datetime) -> list[Condition]:
    """UnknownField where the last applied manifest has such a field; else nothing."""
    found = list(islice(_unknown(last_applied.manifest(obj), obj, "", ""), MOST + 1))
    if not found:
        return []
    named = ", ".join(found[:MOST]) + (" and more" if len(found) > MOST else "")
    text = (
        f"the API server dropped from the manifest that was applied last: {named}; correct the manifest and apply it "
        "again; kubectl refuses such fields unless it runs with --validate=false"
    )
    return [condition(UNKNOWN_FIELD, True, UNKNOWN_FIELD, text, now)]


def of_conditions(before: Iterable[Condition], now: Iterable[Condition]) -> tuple[Event, ...]:
    """One Event for each message of the condition UnknownField that the former conditions lack."""
    former = {item.message for item in before if item.type == UNKNOWN_FIELD}
    fresh = [item for item in now if item.type == UNKNOWN_FIELD and item.message not in former]
    return tuple(Event("Warning", "UnknownField", item.message) for item in fresh)


def _unknown(applied: Any, stored: Any, path: str, shown: str) -> Iterator[str]:
    """A message for each unknown field below a path of the schema; `shown` also has the indexes in lists."""
    if isinstance(applied, list) and f"{path}[]" in _BELOW:
        for place, item in enumerate(applied):
            kept = stored[place] if isinstance(stored, list) and place < len(stored) else None
            yield from _unknown(item, kept, f"{path}[]", f"{shown}[{place}]")
    if isinstance(applied, dict) and path in _BELOW:
        for name, item in applied.items():
            kept = stored.get(name) if isinstance(stored, dict) else None
            if name in _BELOW[path]:
                yield from _unknown(item, kept, _joined(path, name), _joined(shown, name))
            elif kept is None:  # else the CRD in the cluster is newer than this operator
                yield _in_words(path, shown, name)


def _in_words(path: str, shown: str, name: str) -> str:
    meant = _nearest(path, shown, name[:LONGEST])
    question = f" (did you mean {json.dumps(meant)}?)" if meant else ""
    return f"unknown field {json.dumps(_joined(shown, name[:LONGEST]))}{question}"


def _nearest(path: str, shown: str, name: str) -> str | None:
    """A sibling field with a similar name; or the only field of the same name elsewhere."""
    if near := difflib.get_close_matches(name, sorted(_BELOW[path]), n=1):
        return _joined(shown, near[0])
    same = [field for field in FIELDS if field.rpartition(".")[2] == name]
    return same[0] if len(same) == 1 else None


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
