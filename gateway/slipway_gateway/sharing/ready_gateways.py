"""How many gateways are ready, and which of them this one is (pure)."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..quotas.tenant import Share


class ReadyGateways:
    """`share`: this gateway's share of each limit. `name`: of its pod. Before any EndpointSlice is seen, it is all."""

    def __init__(self, name: str = "", on_change: Callable[[int], None] = lambda parts: None) -> None:
        self._name = name
        self._on_change = on_change
        self._slices: dict[str, frozenset[str]] = {}
        self.share = Share()
        on_change(1)

    def seen(self, key: str, ready: Collection[str]) -> None:
        """One EndpointSlice has these ready pods."""
        self._slices[key] = frozenset(ready)
        self._count()

    def gone(self, key: str) -> None:
        self._slices.pop(key, None)
        self._count()

    def _count(self) -> None:
        names = sorted(frozenset().union(*self._slices.values()))
        parts = max(1, len(names))
        # A gateway that is not ready itself has the smallest part.
        rank = names.index(self._name) if self._name in names else parts - 1
        if (share := Share(parts, rank)) != self.share:
            self.share = share
            self._on_change(parts)


def ready_pods(endpoint_slice: Mapping[str, Any]) -> list[str]:
    """Names of the pods of an EndpointSlice that are ready. The API documents an absent condition as ready."""
    found = endpoint_slice.get("endpoints") or ()
    return [_name(one) for one in found if (one.get("conditions") or {}).get("ready") is not False]


def _name(endpoint: Mapping[str, Any]) -> str:
    return str((endpoint.get("targetRef") or {}).get("name") or endpoint["addresses"][0])
