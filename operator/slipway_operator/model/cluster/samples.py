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
    units: int = 0  # sessions of which a first attempt ended: what events are a part of
    events: dict[str, int] = field(default_factory=dict)  # units with a bad one, by kind: errors, empty, truncated, ...
    # Latencies in seconds, by kind (ttft, itl, e2e) and stratum, of each session's first request that can have one; not
    # cumulated, one count more than the kind has bounds.
    slow: dict[str, dict[str, Buckets]] = field(default_factory=dict)
    # The same of those that have no value, or not yet: what they took at least.
    late: dict[str, dict[str, Buckets]] = field(default_factory=dict)
    assigned: int = 0  # units that the split gave it


@dataclass(frozen=True, slots=True)
class Pairs:
    """Mirrored requests, by whose answer differs more from stable's: canary's, or that of a second stable pod."""

    pairs: int = 0  # that both answered
    canary_only: int = 0
    second_only: int = 0
    both: int = 0  # as much as one another
    no_floor: int = 0  # that only canary answered: stable had one pod
    no_floor_differs: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of one gateway for the requests that it assigned under one generation of the route."""

    generation: int
    weights: dict[str, int]  # by revision, in percent
    revisions: dict[str, Side] = field(default_factory=dict)
    # Of the revision that got copies, by what was compared: text, tokens.
    shadow: dict[str, dict[str, Pairs]] = field(default_factory=dict)
