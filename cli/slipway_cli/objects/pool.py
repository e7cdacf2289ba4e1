"""A ModelPool as commands and views read it; pure. Its status has one item for each revision that it serves."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipway_cli.api import Json
from slipway_cli.objects import pods
from slipway_cli.objects.pods import PodRow

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class PoolEntrySummary:
    """One revision of a model in a pool."""

    model: str
    deployment: str
    revision: str
    stable: bool
    loaded: int  # pods that have it in memory
    reason: str  # why a pod does not serve it

    def describe(self, ready_pods: int) -> str:
        """Whether it is in memory, and what keeps a pod from serving it."""
        where = f"in memory in {self.loaded} of {ready_pods} pods" if self.loaded else "not in memory"
        return f"{where}: {self.reason}" if self.reason else where


@dataclass(frozen=True, slots=True)
class Pool:
    """One ModelPool with its pods."""

    name: str
    ready: str
    ready_pods: int
    models: int
    loaded: int
    memory_bytes: int
    memory_limit_bytes: int
    problems: tuple[str, ...]  # conditions that are not True
    entries: tuple[PoolEntrySummary, ...]
    pods: tuple[PodRow, ...] = ()

    def entry(self, deployment: str, revision: str) -> PoolEntrySummary | None:
        """The entry of a revision, or None. Two ModelDeployments with the same inputs and model name share one."""
        same = [one for one in self.entries if one.revision == revision]
        return next((one for one in same if one.deployment == deployment), same[0] if same else None)

    def describe(self) -> str:
        """The state of the pool in one line, without its name."""
        memory = f"{format_bytes(self.memory_bytes)} of {format_bytes(self.memory_limit_bytes)}"
        return f"ready {self.ready or '?'}  {self.loaded} of {self.models} models in memory  {memory}"


def pool_of(obj: Json) -> str | None:
    """The name of the pool that serves a ModelDeployment; None where it has pods of its own."""
    name = ((obj.get("spec") or {}).get("pool") or {}).get("name")
    return str(name) if name else None


def read_pool(obj: Json, pod_items: Sequence[Json] = ()) -> Pool:
    """Read a ModelPool as the API server gave it. Operators of older releases write no entries."""
    status = obj.get("status") or {}
    ready = str(status.get("ready") or "")
    count = ready.partition("/")[0]
    conditions = status.get("conditions") or ()
    return Pool(
        name=obj["metadata"]["name"],
        ready=ready,
        ready_pods=int(count) if count.isdecimal() else 0,
        models=status.get("models", 0),
        loaded=status.get("loaded", 0),
        memory_bytes=status.get("memoryBytes", 0),
        memory_limit_bytes=status.get("memoryLimitBytes", 0),
        problems=tuple(
            f"{item.get('type', '')} is {item.get('status', '')} ({item.get('reason', '')}): {item.get('message', '')}"
            for item in conditions
            if item.get("status") != "True"
        ),
        entries=tuple(map(_entry, status.get("entries") or ())),
        pods=tuple(sorted(map(pods.read_row, pod_items), key=lambda row: row.name)),
    )


def format_bytes(size: int) -> str:
    """A size with the largest unit of which there is at least one: 1.5 GiB."""
    amount, unit = float(size), _UNITS[0]
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == _UNITS[0] else f"{amount:.1f} {unit}"


def _entry(item: Json) -> PoolEntrySummary:
    return PoolEntrySummary(
        model=str(item.get("model", "")),
        deployment=str(item.get("modelDeployment", "")),
        revision=str(item.get("revision", "")),
        stable=bool(item.get("stable")),
        loaded=item.get("loaded", 0),
        reason=str(item.get("reason") or ""),
    )
