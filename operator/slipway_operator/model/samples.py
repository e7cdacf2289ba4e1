"""What gateways counted of requests that were split by weight; docs/contracts.md has the wire format."""

from dataclasses import dataclass, field

Buckets = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One revision's counters under one generation of the route; they only grow while the gateway lives.

    What is compared with a limit only grows as well, for a limit that is one of the bounds: those in `slow` above it
    and those in `late` above it together.
    """

    requests: int = 0  # first attempts that ended
    events: dict[str, int] = field(default_factory=dict)  # bad ones by kind: errors, empty, truncated, ...
    # Latencies in seconds by kind (ttft, itl, e2e) and stratum; not cumulated, one count more than the kind has bounds.
    slow: dict[str, dict[str, Buckets]] = field(default_factory=dict)
    # The same of those that have no value, or not yet: what they took at least.
    late: dict[str, dict[str, Buckets]] = field(default_factory=dict)
    assigned: int = 0  # requests that the split gave it


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of one gateway for the requests that it assigned under one generation of the route."""

    generation: int
    weights: dict[str, int]  # by revision, in percent
    revisions: dict[str, Side] = field(default_factory=dict)
