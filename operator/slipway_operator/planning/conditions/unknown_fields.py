"""Fields of an applied manifest that the API server dropped, because the schema does not have them.

`kubectl apply` refuses them; with --validate=false, and with older clients, the API server prunes them.
"""

import difflib
import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment import last_applied
from slipway_operator.model.deployment.spec_fields import FIELDS
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type

UNKNOWN_FIELD = "UnknownField"  # the type and its reason
MOST = 5  # fields that are named
LONGEST = 64  # characters of a name that are shown and compared

# Names below each path; a path that is not here is a value, or a map with arbitrary keys.
_BELOW: defaultdict[str, set[str]] = defaultdict(set)
for _path in FIELDS:
    _parent, _, _name = _path.rpartition(".")
    _BELOW[_parent].add(_name)


def _new_fields(before: Condition | None, now: Condition | None) -> Event | None:
    """One Event for each message that the former condition lacks."""
    is_new = now is not None and (before is None or before.message != now.message)
    return Event("Warning", "UnknownField", now.message) if now and is_new else None


@condition_type(UNKNOWN_FIELD, rank=130, event=_new_fields, bad_when="True")
def unknown_field(facts: ConditionFacts) -> ConditionState | None:
    """Where the last applied manifest has a field that the schema of ModelDeployments lacks; else nothing."""
    if facts.at.spec.inputs.base:
        return None
    applied = last_applied.manifest(facts.obj)
    problems = list(islice(_unknown(applied, facts.obj, "", ""), MOST + 1))
    if not problems:
        return None
    named = ", ".join(problems[:MOST]) + (" and more" if len(problems) > MOST else "")
    text = (
        f"the API server dropped from the manifest that was applied last: {named}; correct the manifest and apply it "
        "again; kubectl refuses such fields unless it runs with --validate=false"
    )
    return ConditionState(True, UNKNOWN_FIELD, text)


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
    """A sibling field with a similar name; or the only field of the same name elsewhere that is least deep."""
    if near := difflib.get_close_matches(name, sorted(_BELOW[path]), n=1):
        return _joined(shown, near[0])
    same = [field for field in FIELDS if field.rpartition(".")[2] == name]
    least = min((field.count(".") for field in same), default=0)
    highest = [field for field in same if field.count(".") == least]
    return highest[0] if len(highest) == 1 else None


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


TYPES = (unknown_field,)
