"""Gateways' counters of requests that were split by weight; docs/contracts.md has the wire format."""

from dataclasses import dataclass, field

Buckets = tuple[int, ...]
BINS = 17


@dataclass(frozen=True, slots=True)
class Side:
    """One revision's counters under one generation of the route; they only grow while the gateway lives.

    The number of latencies above a limit, in `slow` and `late` together, also only grows, if the limit is a bound.
    """

    requests: int = 0  # first attempts that ended
    units: int = 0  # sessions of which a first attempt ended: the total that `events` is a part of
    events: dict[str, int] = field(default_factory=dict)  # units with a bad event, by kind: errors, empty, truncated...
    # Histograms of latencies, by kind (ttft, itl, e2e) and stratum, of each session's first request that can have one;
    # not cumulative, with one count more than the kind has bounds.
    slow: dict[str, dict[str, Buckets]] = field(default_factory=dict)
    # The same for requests that have no latency, or not yet: the time that they took at least.
    late: dict[str, dict[str, Buckets]] = field(default_factory=dict)
    assigned: int = 0  # units that the split assigned to the revision
    rated: int = 0  # units with feedback
    wrong: int = 0  # units with feedback that an answer was wrong
    predicted: Buckets = ()  # units by bin of their first prediction; the last bin is for predictions in no other
    unread: int = 0  # units whose prediction could not be read


@dataclass(frozen=True, slots=True)
class Pairs:
    """Mirrored requests, by which response differs more from stable's: canary's or that of a second stable pod."""

    pairs: int = 0  # mirrored requests that canary and the second stable pod answered
    canary_only: int = 0
    second_only: int = 0
    both: int = 0  # both differ, equally
    no_floor: int = 0  # mirrored requests that only canary answered, because stable had one pod
    no_floor_differs: int = 0


@dataclass(frozen=True, slots=True)
class Discordance:
    """Pairs of a twin shadow with an event, by leg. `unanswered`: canary has it; stable had no room for a twin."""

    canary_only: int = 0
    twin_only: int = 0
    both: int = 0
    unanswered: int = 0


@dataclass(frozen=True, slots=True)
class PairedTimes:
    """Pairs in which both legs have a latency, by how canary's compares with its twin's."""

    pairs: int = 0
    over: int = 0  # canary is slower than its twin by more than the route table's slowdown
    tail_pairs: int = 0  # pairs of a stratum with a threshold; the next three: by which leg is above it
    tail_canary_only: int = 0
    tail_twin_only: int = 0
    tail_both: int = 0


@dataclass(frozen=True, slots=True)
class Agreements:
    """Sessions by the outcome of their first mirrored request whose predictions were to be compared; or pairs."""

    compared: int = 0  # both predictions are known
    disagreed: int = 0  # those of `compared` in which canary's prediction differs
    unread: int = 0  # stable's prediction could not be read
    failed: int = 0  # stable's could be read, but canary sent no complete response with status 200


PROBE_FAILED = "probe_failed"  # a key of `withheld`: neither side answered a probe


@dataclass(frozen=True, slots=True)
class Probed:
    """Pairs that are probes, which are also in `Twins.pairs`, and those with a bad response, by leg."""

    pairs: int = 0
    canary_only: int = 0
    twin_only: int = 0
    both: int = 0


@dataclass(frozen=True, slots=True)
class Quality:
    """Pairs whose texts were compared, and pairs in which both revisions scored the tokens of the twin's response."""

    texts: int = 0
    differ: int = 0
    scored: int = 0
    tokens: int = 0
    canary_flips: int = 0
    twin_flips: int = 0
    canary_only: int = 0  # more than 1 % of the tokens are not canary's first choice, and for the twin at most 1 %
    twin_only: int = 0
    both: int = 0


@dataclass(frozen=True, slots=True)
class Scores:
    """Pairs that a scorer rated, and those without a result. All except `open` only grow while the gateway lives."""

    open: int = 0  # calls of the scorer that have not ended: in no other count yet
    scored: int = 0
    canary_only: int = 0  # canary's response is worse by more than the margin
    twin_only: int = 0
    rated: int = 0  # pairs with a score for each response; the next two: sums of the scores
    canary_thousandths: int = 0
    twin_thousandths: int = 0
    unanswered: int = 0
    invalid: int = 0
    dropped: int = 0  # not sent: the gateway had no room
    blocked: int = 0  # not sent: the gateway may not call this host

    @property
    def unknown(self) -> int:
        """Pairs whose call of the scorer failed. The texts may be the reason, so these pairs count as unknown."""
        return self.unanswered + self.invalid


@dataclass(frozen=True, slots=True)
class Twins:
    """Pairs of a twin shadow: requests sent to canary and a stable pod at once, at most one per session and epoch.

    All except `open` only grow while the gateway lives.
    """

    open: int = 0  # sent and not ended: in no other count yet
    pairs: int = 0
    events: dict[str, Discordance] = field(default_factory=dict)  # by kind of event; `bad`: any kind except truncated
    latencies: dict[str, PairedTimes] = field(default_factory=dict)  # by kind: ttft, itl, e2e
    withheld: dict[str, int] = field(default_factory=dict)  # pairs that were not sent, by reason
    probes: Probed = field(default_factory=Probed)
    quality: Quality = field(default_factory=Quality)
    scores: Scores = field(default_factory=Scores)
    agreements: Agreements = field(default_factory=Agreements)

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
    # By the revision that got the mirrored requests, then by what was compared: text or tokens.
    shadow: dict[str, dict[str, Pairs]] = field(default_factory=dict)
    twins: dict[str, Twins] = field(default_factory=dict)  # by canary revision
    agreements: dict[str, Agreements] = field(default_factory=dict)  # by the revision that got the mirrored requests
