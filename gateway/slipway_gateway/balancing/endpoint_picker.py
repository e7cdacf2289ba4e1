"""Policies that choose one endpoint among those of a revision; each is an `EndpointPicker` (pure)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from ..routing.split import affinity

_NONE: Mapping[str, int] = MappingProxyType({})
# What one more request in flight costs, in bytes of a prompt that is computed: while it has its turn in each step of
# the engine, so many could be computed. Without it one endpoint would get every request with a known beginning.
REQUEST_BYTES = 512


class LeastLoad(msgspec.Struct, frozen=True):
    """The endpoint with the fewest requests in flight; at equal load a key keeps its endpoint.

    `own`: the same tenant's part of `in_flight`. It counts twice: servers share their time among the tenants whose
    requests they have, so a tenant whose requests are all at one endpoint gets a share of that endpoint alone.
    """

    in_flight: Mapping[str, int] = _NONE
    own: Mapping[str, int] = _NONE

    def pick(self, urls: Sequence[str], key: str) -> str:
        return cheapest(urls, self.loads(urls), key)

    def loads(self, urls: Sequence[str]) -> list[int]:
        in_flight, own = self.in_flight.get, self.own.get
        return [in_flight(url, 0) + own(url, 0) for url in urls] if self.own else [in_flight(url, 0) for url in urls]


class PrefixAffinity(msgspec.Struct, frozen=True):
    """The endpoint that computes the least before the first token of a prompt: what it has of others, and what its
    cache lacks of this one. Where no cache has anything of the prompt it is the least loaded one.

    An endpoint whose waiting prompts cost more than computing this one again elsewhere is therefore passed over.

    `matched`: bytes of the prompt that an endpoint's cache has. `waiting`: bytes of other prompts that it has to
    compute. `name`: at equal cost prompts of this name have the same endpoint, in every gateway.
    """

    least: LeastLoad
    matched: Mapping[str, int]
    waiting: Mapping[str, int]
    name: str

    def pick(self, urls: Sequence[str], key: str) -> str:
        loads, matched = self.least.loads(urls), self.matched
        if matched and any(url in matched for url in urls):
            waiting = self.waiting.get
            costs = [
                waiting(url, 0) - matched.get(url, 0) + REQUEST_BYTES * load
                for url, load in zip(urls, loads, strict=True)
            ]
            return cheapest(urls, costs, self.name or key)
        return cheapest(urls, loads, self.name or key)


def cheapest(urls: Sequence[str], costs: Sequence[int], key: str) -> str:
    """The endpoint with the least cost; of several it is the same one for the same key."""
    least = min(costs)
    if costs.count(least) == 1:
        return urls[costs.index(least)]
    return min(
        (url for url, cost in zip(urls, costs, strict=True) if cost == least), key=lambda url: affinity(url, key)
    )
