"""Pairs of a twin shadow at a gateway of the model cluster: both legs answer as their revisions do."""

from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

from slipway_contracts.counters import (
    MILLION,
    AgreementCounts,
    EventCounts,
    GenerationCounts,
    LatencyCounts,
    ProbeCounts,
    QualityCounts,
    ScoreCounts,
    TwinCounts,
    no_pairs,
    zero,
)
from slipway_contracts.twin_shadow import TwinShadow
from slipway_operator.model.labels import baseline_of

if TYPE_CHECKING:
    from tests.support.model_world import World

TIMEOUT_S = 120
SECONDS = 0.2  # the median of a latency
TOKENS = 50  # of a response


@dataclass(frozen=True)
class ModelPair:
    """A pair that was sent; its outcome is known to the test, and to the gateway when it ends."""

    generation: int
    shadow: TwinShadow
    ends: datetime
    stratum: str
    canary_bad: bool
    twin_bad: bool
    canary_s: float
    twin_s: float
    probe: bool = False
    own_bad: bool = False  # stable failed its client
    flips: bool = False  # more than one in a hundred of stable's tokens is not canary's first choice
    lost: int = 0  # further tokens that are not canary's first choice
    lower: bool = False  # a scorer rates canary's response lower
    unscored: bool = False  # its scorer returns nothing
    differs: bool = False  # canary, a classic model, predicts something else


@dataclass
class ModelPairs:
    """The pairs of one gateway. They draw chances of their own, so that requests of clients are as without them."""

    sent: list[ModelPair] = field(default_factory=list)
    moment: datetime | None = None
    at_once: int = 0  # pairs at this moment
    probes: int = 0

    def probe(self, sample: GenerationCounts, shadow: TwinShadow, seconds: int, world: "World") -> None:
        """So many probes as these seconds have room for beside the pairs of clients."""
        assert shadow.probes, "only a table with prompts has probes"
        clients = self.at_once if self.moment == world.now else 0
        wanted = shadow.probes.pairs_per_minute * seconds // 60 - clients
        for _ in range(max(0, min(wanted, shadow.probes.max_pairs - self.probes))):
            self.probes += 1
            chance = Random(f"probe {world.now}/{self.probes}/{shadow.revision}")
            self._send(sample, shadow, replace(self._pair(sample.generation, shadow, world, chance), probe=True))

    def offer(self, sample: GenerationCounts, shadow: TwinShadow, world: "World") -> None:
        """A client's request is over: a pair is sent, or withheld."""
        if self.moment != world.now:
            self.moment, self.at_once = world.now, 0
        self.at_once += 1
        chance = Random(f"{world.now}/{self.at_once}/{shadow.revision}/{sample.generation}")
        if chance.random() * 100 >= shadow.percentage:
            return
        before = sample.twins.get(shadow.revision, no_pairs())
        if reason := self._withheld(shadow, world, chance):
            withheld = before.withheld | {reason: before.withheld.get(reason, 0) + 1}
            sample.twins[shadow.revision] = replace(before, withheld=withheld)
            return
        self._send(sample, shadow, self._pair(sample.generation, shadow, world, chance))

    def _send(self, sample: GenerationCounts, shadow: TwinShadow, pair: ModelPair) -> None:
        before = sample.twins.get(shadow.revision, no_pairs())
        sample.twins[shadow.revision] = replace(before, open=before.open + 1)
        self.sent.append(pair)

    def _withheld(self, shadow: TwinShadow, world: "World", chance: Random) -> str:
        if chance.random() < world.busy:
            return "busy"
        if self.at_once > 20 * shadow.max_pairs_per_second:
            return "rate"
        if not world.ready(shadow.revision):
            return "no_canary"
        return "" if world.ready(baseline_of(shadow.twin)) or world.ready(shadow.twin) else "no_twin"

    def _pair(self, generation: int, shadow: TwinShadow, world: "World", chance: Random) -> ModelPair:
        twin = baseline_of(shadow.twin)
        prompt = chance.lognormvariate(0, 0.5)
        bad = [chance.random() < world.error_rate(name) for name in (shadow.revision, twin)]
        seconds = [
            SECONDS * prompt * chance.lognormvariate(0, 0.1) * (world.slowness if world.uri(name) in world.slow else 1)
            for name in (shadow.revision, twin)
        ]
        hangs = chance.random() < world.hangs.get(world.uri(shadow.revision), 0.0)
        ends = world.now + timedelta(seconds=TIMEOUT_S if hangs else world.pair_seconds)
        own_bad = shadow.reference is not None and chance.random() < world.error_rate(shadow.twin)
        flips = bool(shadow.quality) and chance.random() < world.drift
        lost = sum(chance.random() < world.lost for _ in range(TOKENS if shadow.quality and world.lost else 0))
        made = ModelPair(generation, shadow, ends, "b<4k,stream", bad[0] or hangs, bad[1], *seconds, own_bad=own_bad)
        lower = shadow.scorer is not None and chance.random() < world.lower
        unscored = shadow.scorer is not None and chance.random() < world.unscored
        differs = shadow.tolerance is not None and chance.random() < world.drift
        return replace(made, flips=flips, lost=lost, lower=lower, unscored=unscored, differs=differs)

    def end(self, samples: dict[int, GenerationCounts], now: datetime) -> None:
        """Pairs that are over are counted, in the generation in which they were sent."""
        for pair in [pair for pair in self.sent if pair.ends <= now]:
            self.sent.remove(pair)
            if sample := samples.get(pair.generation):
                sample.twins[pair.shadow.revision] = _ended(sample.twins[pair.shadow.revision], pair)


def _ended(before: TwinCounts, pair: ModelPair) -> TwinCounts:
    # Without a twin stable repeats what canary fails; else its response to the client counts.
    alone = pair.shadow.reference is not None and not pair.probe and not pair.canary_bad
    twin_bad = pair.own_bad if alone else pair.twin_bad
    events = {
        name: _discordant(before.events.get(name, zero(EventCounts)), pair.canary_bad, twin_bad)
        for name in ("bad", "errors")
    }
    latencies = dict(before.latencies)
    for limit in pair.shadow.latencies:
        if limit.measure == "ttft" and not (pair.canary_bad or pair.twin_bad):
            found = latencies.get("ttft", zero(LatencyCounts))
            tail = next((one.microseconds / 1e6 for one in limit.tail if one.stratum == pair.stratum), None)
            over = pair.canary_s * 100 > pair.twin_s * (100 + limit.max_slowdown)
            sides = (False, False) if tail is None else (pair.canary_s > tail, pair.twin_s > tail)
            latencies["ttft"] = LatencyCounts(
                found.pairs + 1,
                found.over + over,
                found.tail_pairs + (tail is not None),
                found.tail_canary_only + (sides[0] and not sides[1]),
                found.tail_twin_only + (sides[1] and not sides[0]),
                found.tail_both + all(sides),
            )
    quality = _compared(before.quality, pair) if pair.shadow.quality else before.quality
    probes = _probed(before.probes, pair) if pair.probe else before.probes
    scores = _rated(before.scores, pair) if pair.shadow.scorer else before.scores
    agreements = _agreed(before.agreements, pair) if pair.shadow.tolerance else before.agreements
    ended = replace(before, events=events, latencies=latencies, probes=probes, quality=quality, scores=scores)
    return replace(ended, open=before.open - 1, pairs=before.pairs + 1, agreements=agreements)


def _agreed(before: AgreementCounts, pair: ModelPair) -> AgreementCounts:
    if pair.twin_bad:
        return replace(before, unread=before.unread + 1)
    if pair.canary_bad:
        return replace(before, failed=before.failed + 1)
    return replace(before, compared=before.compared + 1, disagreed=before.disagreed + pair.differs)


def _compared(before: QualityCounts, pair: ModelPair) -> QualityCounts:
    """Tokens of stable's, all its first choices, and a part of the pairs in which canary would choose others."""
    if pair.canary_bad or pair.twin_bad:
        return before
    flips = max(2 * pair.flips, pair.lost)
    over = flips * 100 > TOKENS
    more = (1, flips > 0, 1, TOKENS, flips, 0, over, 0, 0, 1, flips * MILLION // TOKENS, 0, 0)
    sums = [getattr(before, item.name) + int(add) for item, add in zip(fields(QualityCounts), more, strict=True)]
    return QualityCounts(*sums)


def _rated(before: ScoreCounts, pair: ModelPair) -> ScoreCounts:
    """A score of 0.9, or of 0.4 where it is lower."""
    if pair.canary_bad or pair.twin_bad:
        return before
    if pair.unscored:
        return replace(before, unanswered=before.unanswered + 1)
    return replace(
        before,
        scored=before.scored + 1,
        canary_only=before.canary_only + pair.lower,
        rated=before.rated + 1,
        canary_thousandths=before.canary_thousandths + (400 if pair.lower else 900),
        twin_thousandths=before.twin_thousandths + 900,
    )


def _probed(before: ProbeCounts, pair: ModelPair) -> ProbeCounts:
    bad = _discordant(EventCounts(before.canary_only, before.twin_only, before.both), pair.canary_bad, pair.twin_bad)
    return ProbeCounts(bad.canary_only, bad.twin_only, bad.both, before.pairs + 1)


def _discordant(before: EventCounts, canary: bool, twin: bool) -> EventCounts:
    return EventCounts(
        before.canary_only + (canary and not twin),
        before.twin_only + (twin and not canary),
        before.both + (canary and twin),
    )
