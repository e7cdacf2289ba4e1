"""Names for API calls and for the faults of a call; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

WRITES = frozenset({"APPLY", "CREATE", "PATCH", "UPDATE", "DELETE"})


class Fault(StrEnum):
    """What the proxy does to one call."""

    KILL_BEFORE = "killed-before"  # the call never reaches the API server
    KILL_AFTER = "killed-after"  # the API server did it, and the operator never learns
    CONFLICT = "409"
    EXPIRED = "410"
    TOO_MANY = "429"
    BROKEN = "500"
    TIMEOUT = "timeout"  # done, but the answer does not come in time
    RESET_BEFORE = "reset-before"  # the connection breaks, not done
    RESET_AFTER = "reset-after"  # the connection breaks, done


KILLS = (Fault.KILL_BEFORE, Fault.KILL_AFTER)
ERRORS = tuple(fault for fault in Fault if fault not in KILLS)
AFTER = frozenset({Fault.KILL_AFTER, Fault.TIMEOUT, Fault.RESET_AFTER})


@dataclass(frozen=True, order=True)
class Point:
    """One call of a history: the n-th of its kind, counted from 1.

    Not the n-th of all: reads run side by side, so their order is another one each time.
    """

    kind: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.kind} #{self.occurrence}"


def is_write(kind: str) -> bool:
    """Whether calls of a kind change something."""
    return kind.split(" ", 1)[0] in WRITES


def kind_of(method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    """Verb and resource of a call, in the words of RBAC, `apply` beside them: `APPLY replicasets`."""
    resource, named, sub = _target(path)
    if not resource:
        return f"{method} {path}"
    verb = _verb(method, named, query, headers)
    return f"{verb} {resource}" + (f"/{sub}" if sub else "")


def _verb(method: str, named: bool, query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    if method == "GET":
        if query.get("watch") in ("true", "1"):
            return "WATCH"
        return "GET" if named else "LIST-NAMES" if "PartialObject" in headers.get("Accept", "") else "LIST"
    if method == "PATCH":
        return "APPLY" if "apply-patch" in headers.get("Content-Type", "") else "PATCH"
    return {"POST": "CREATE", "PUT": "UPDATE"}.get(method, method)


def _target(path: str) -> tuple[str, bool, str]:
    """(resource, whether one object is named, subresource) of a path; no resource for discovery and the like."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:] if parts[0] == "apis" else []
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    if not rest:
        return "", False, ""
    return rest[0], len(rest) > 1, rest[2] if len(rest) > 2 else ""
