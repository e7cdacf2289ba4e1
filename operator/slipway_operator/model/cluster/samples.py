"""Gateways' counters of requests that were split by weight; docs/contracts.md has the wire format."""

from dataclasses import dataclass, field

Buckets = tuple[int, ...]
BINS = 17


@dataclass(frozen=True, slots=True)
class Side:
    """One revision's counters under one generation of the route; they only grow while the gateway lives.

    The count above a limit, of `slow` and `late` together, also only grows, where the limit is one of the bounds.
    """

    requests: int = 0  # first attempts that ended
    units: int = 0  # sessions of which a first attempt ended: the total that `events` is a part of
    events: dict[str, int] = field(default_factory=dict)  # units with a bad event by kind: errors, empty, truncated...
    # Latencies in seconds, by kind (ttft, itl, e2e) and stratum, of each session's first request that can have one; not
    # cumulated, one count more than the kind has bounds.
    slow: dict[str, dict[str, Buckets]] = field(default_factory=dict)
    # The same for requests without a value, or without one yet: the least time that they took.
    late: dict[str, dict[str, Buckets]] = field(default_factory=dict)
    assigned: int = 0  # units that the split assigned to it
    rated: int = 0  # units with feedback, and those with feedback that an answer was wrong
    wrong: int = 0
    predicted: Buckets = ()  # units by the bin of their first prediction: BINS, the last one of all that have none
    unread: int = 0  # units whose prediction could not be read


@dataclass(frozen=True, slots=True)
class Pairs:
    """Mirrored requests, by whose response differs more from stable's: canary's or a second stable pod's."""

    pairs: int = 0  # that both answered
    canary_only: int = 0
    second_only: int = 0
    both: int = 0  # both differ, equally
    no_floor: int = 0  # that only canary answered: stable had one pod
    no_floor_differs: int = 0


@dataclass(frozen=True, slots=True)
class Discordance:
    """Pairs of a twin shadow in which a leg has an event, by leg. `unanswered`: canary's, stable had no room."""

    canary_only: int = 0
    twin_only: int = 0
    both: int = 0
    unanswered: int = 0


@dataclass(frozen=True, slots=True)
class PairedTimes:
    """Pairs with a latency on both sides, by how canary's compares with its twin's."""

    pairs: int = 0
    over: int = 0  # canary is slower than its twin by more than the slowdown of the table
    tail_pairs: int = 0  # those of a stratum with a threshold, by which leg is above it
    tail_canary_only: int = 0
    tail_twin_only: int = 0
    tail_both: int = 0


@dataclass(frozen=True, slots=True)
class Agreements:
    """Sessions by their first mirrored request whose predictions were to be compared."""

    compared: int = 0  # both predictions are known
    disagreed: int = 0  # those of them where canary's is another one
    unread: int = 0  # stable's could not be read
    failed: int = 0  # stable's could, and canary gave no whole response of status 200


PROBE_FAILED = "probe_failed"  # of the reasons why there is no pair: neither side answered a probe


@dataclass(frozen=True, slots=True)
class Probed:
    """Pairs that are probes, part of all pairs, and those with a bad response by leg."""

    pairs: int = 0
    canary_only: int = 0
    twin_only: int = 0
    both: int = 0


@dataclass(frozen=True, slots=True)
class Quality:
    """Pairs whose texts were compared, and those whose twin's response both sides scored."""

    texts: int = 0
    differ: int = 0
    scored: int = 0
    tokens: int = 0
    canary_flips: int = 0
    twin_flips: int = 0
    canary_only: int = 0  # more than one in a hundred tokens is not canary's first choice, and fewer not its twin's
    twin_only: int = 0
    both: int = 0


@dataclass(frozen=True, slots=True)
class Scores:
    """Pairs that a scorer rated, and those without a result. All except `open` only grow while the gateway lives."""

    open: int = 0  # calls that have not ended: part of no other count yet
    scored: int = 0
    canary_only: int = 0  # canary's response is the worse one by more than the margin
    twin_only: int = 0
    rated: int = 0  # with a score for each response; the sums are in thousandths
    canary_thousandths: int = 0
    twin_thousandths: int = 0
    unanswered: int = 0
    invalid: int = 0
    dropped: int = 0  # not sent: the gateway had no room
    blocked: int = 0  # not sent: the gateway may not call this host

    @property
    def unknown(self) -> int:
        """Pairs that were, or could have been, rated, and have no result for a reason that their texts may have."""
        return self.unanswered + self.invalid


@dataclass(frozen=True, slots=True)
class Twins:
    """Pairs of a twin shadow: requests that canary and a stable pod got at once, each session once in an epoch.

    All except `open` only grow while the gateway lives.
    """

    open: int = 0  # sent, and not ended: part of no other count yet
    pairs: int = 0
    events: dict[str, Discordance] = field(default_factory=dict)  # by kind; `bad` is any kind except truncated
    latencies: dict[str, PairedTimes] = field(default_factory=dict)  # by ttft, itl, e2e
    withheld: dict[str, int] = field(default_factory=dict)  # pairs that were not sent, by reason
    probes: Probed = field(default_factory=Probed)
    quality: Quality = field(default_factory=Quality)
    scores: Scores = field(default_factory=Scores)

    @property
    def starved(self) -> int:
        """Pairs that were not sent because a pod, or the gateway, had no room for them."""
        return sum(self.withheld.get(reason, 0) for reason in ("busy", "full", "canary_refused", "twin_refused"))


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of one gateway for the requests that it assigned under one generation of the route."""

    generation: int
    weights: dict[str, int]  # by revision, in percent
    revisions: dict[str, Side] = field(default_factory=dict)
    # By the revision that got the copies, then by what was compared: text, tokens.
    shadow: dict[str, dict[str, Pairs]] = field(default_factory=dict)
    twins: dict[str, Twins] = field(default_factory=dict)  # by canary
    agreements: dict[str, Agreements] = field(default_factory=dict)  # by the revision that got the copies
