"""A gateway of the model cluster: follows the table when a test lets it, splits requests, counts how they ended."""

from bisect import bisect_left
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from itertools import accumulate, count
from random import Random
from typing import TYPE_CHECKING

from slipway_contracts.accuracy import AccuracyCounts
from slipway_contracts.counters import (
    AgreementCounts,
    GenerationCounts,
    RevisionCounts,
    ShadowCounts,
    no_requests,
    zero,
)
from slipway_contracts.route_table import Traffic
from slipway_operator.model.cluster.observed import Gateway
from slipway_operator.model.labels import what_runs
from tests.support.model_pairs import ModelPairs

if TYPE_CHECKING:
    from tests.support.model_world import World

START = datetime(2026, 1, 1, tzinfo=UTC)
BOUNDS = {"ttft": (0.1, 0.2, 0.4, 0.8, 1.6)}
STRATUM = "b<4k,stream"
HUNG_AFTER_S = 60
_INCARNATIONS = count(1)


@dataclass
class Attempt:
    """A request that never ends."""

    generation: int
    revision: str
    begun: datetime
    hung: bool = False  # its silence is counted as too long


@dataclass
class Nature:
    """How a revision answers in this moment."""

    fails: float  # how often an answer does
    times: int  # slower than others
    hangs: float  # how often an answer never ends
    mute: bool  # no latency is counted

    @classmethod
    def of(cls, world: "World", revision: str) -> "Nature":
        uri = world.uri(revision)
        times = world.slowness if uri in world.slow else 3 if world.is_cold(revision) else 1
        return cls(world.error_rate(revision), times, world.hangs.get(uri, 0.0), uri in world.mute)


@dataclass
class Tally:
    """Counters of one revision while requests come, each from a session of its own."""

    requests: int
    assigned: int
    errors: int
    slow: list[int]
    nature: Nature

    @classmethod
    def of(cls, side: RevisionCounts, nature: Nature) -> "Tally":
        buckets = [*side.slow.get("ttft", {}).get(STRATUM, (0,) * 6)]
        return cls(side.requests, side.assigned, side.events.get("errors", 0), buckets, nature)

    def side(self) -> RevisionCounts:
        slow = {"ttft": {STRATUM: tuple(self.slow)}}
        return RevisionCounts(
            requests=self.requests,
            units=self.requests,
            events={"errors": self.errors, "bad": self.errors},
            slow=slow,
            assigned=self.assigned,
        )


@dataclass
class ModelGateway:
    """A gateway that follows the table when the test lets it, and counts what it splits."""

    name: str
    generation: int | None = None
    ready: bool = True
    reachable: bool = True
    cut_off: str = ""
    incarnation: str = field(default_factory=lambda: f"process-{next(_INCARNATIONS)}")
    samples: dict[int, GenerationCounts] = field(default_factory=dict)  # by generation
    open: list[Attempt] = field(default_factory=list)
    pairs: ModelPairs = field(default_factory=ModelPairs)
    asleep: bool = False  # by its table
    holds: bool = False  # for longer than a moment, by its table
    since: datetime = START  # when it began to know the route
    last: datetime | None = None  # when it last had a request in hand
    held: int = 0
    served: int = 0  # of those that came by `visit`
    refused: int = 0
    digest: str = ""  # of the table that it routes by
    weights: dict[str, int] = field(default_factory=dict)
    objectives: dict[str, tuple[int, int]] = field(default_factory=dict)  # requests, and those that missed, by key
    accuracy: AccuracyCounts = field(default_factory=AccuracyCounts)

    def follow(self, table: Traffic | None) -> None:
        """Route by this table from now on; one that was lost leaves the last one in force."""
        if table is None and self.generation:
            return
        self.generation, self.digest = (table.generation, table.digest) if table else (None, "")
        self.weights = {item.revision: item.weight for item in table.backends} if table else {}
        self.asleep = bool(table and table.asleep)
        self.holds = bool(table and table.hold_seconds is not None)

    def visit(self, world: "World") -> None:
        """One request comes; what cannot be served is held, if its table has a hold. Without a table none comes."""
        if self.generation is None:
            return
        self.last = world.now
        if self._serves(world):
            self.served += 1
        else:
            self.held, self.refused = self.held + self.holds, self.refused + (not self.holds)

    def let_go(self, world: "World") -> None:
        """Held requests go to pods that are there."""
        if self.held:
            self.last = world.now
        if self.held and self._serves(world):
            self.served, self.held = self.served + self.held, 0

    def _serves(self, world: "World") -> bool:
        table = world.parsed().traffic
        revisions = [backend.revision for backend in table.backends] if table and not self.asleep else []
        return any(world.all_ready(name) for name in revisions)

    def ask(self, table: Traffic, requests: int, world: "World", chance: Random) -> None:
        """So many requests come, are split by weight, answered and counted."""
        weights = {backend.revision: backend.weight for backend in table.backends}
        sample = self.samples.setdefault(table.generation, GenerationCounts(table.generation, weights, {}))
        sums = dict(zip(weights, accumulate(weights.values()), strict=True))
        tallies: dict[str, Tally] = {}
        for _ in range(requests):
            chosen = _split(sums, chance.random() * 100)
            if chosen not in tallies:
                side = sample.revisions.get(chosen, no_requests())
                tallies[chosen] = Tally.of(side, Nature.of(world, chosen))
            tally = tallies[chosen]
            tally.assigned += 1
            failed = chance.random() < tally.nature.fails
            seconds = chance.lognormvariate(-1.6, 0.5) * tally.nature.times
            if chance.random() < tally.nature.hangs:
                self.open.append(Attempt(table.generation, chosen, world.now))
                continue
            tally.requests += 1
            tally.errors += failed
            tally.slow[bisect_left(BOUNDS["ttft"], seconds)] += not tally.nature.mute
            for mirror in table.mirror_routes:
                if chosen != mirror.revision and chance.random() * 100 < mirror.percentage:
                    self._mirror(sample, mirror.revision, world.ready(what_runs(chosen)) > 1, world, chance)
                    if mirror.tolerance:
                        self._agree(sample, mirror.revision, world, chance)
            if table.twin_shadow:
                self.pairs.offer(sample, table.twin_shadow, world)
        sample.revisions.update({name: tally.side() for name, tally in tallies.items()})
        self.samples = dict(sorted(self.samples.items())[-4:])

    def probe(self, table: Traffic, seconds: int, world: "World") -> None:
        """Probes of these seconds are sent, where their prompts are in the table."""
        if table.twin_shadow and table.twin_shadow.probes and not self.asleep:
            weights = {backend.revision: backend.weight for backend in table.backends}
            sample = self.samples.setdefault(table.generation, GenerationCounts(table.generation, weights, {}))
            self.pairs.probe(sample, table.twin_shadow, seconds, world)
            self.samples = dict(sorted(self.samples.items())[-4:])

    def _mirror(self, sample: GenerationCounts, canary: str, floor: bool, world: "World", chance: Random) -> None:
        """One copy: whether canary, and a second pod of stable where there is one, gives another text than stable."""
        differs, anyway = chance.random() < world.drift, chance.random() < world.floor
        before = sample.shadow.get(canary, {}).get("text", zero(ShadowCounts))
        if floor:
            more = (1, differs and not anyway, anyway and not differs, differs and anyway, 0, 0)
        else:
            more = (0, 0, 0, 0, 1, differs)
        sums = [getattr(before, item.name) + int(add) for item, add in zip(fields(ShadowCounts), more, strict=True)]
        sample.shadow[canary] = {"text": ShadowCounts(*sums)}

    def _agree(self, sample: GenerationCounts, canary: str, world: "World", chance: Random) -> None:
        """One copy whose predictions are compared: whether canary's is another one."""
        before = sample.agreements.get(canary, zero(AgreementCounts))
        more = chance.random() < world.drift
        counts = replace(before, compared=before.compared + 1, disagreed=before.disagreed + more)
        sample.agreements[canary] = counts

    def look(self, now: datetime) -> None:
        """What takes too long is counted as an error, once; pairs end."""
        self.pairs.end(self.samples, now)
        for one in self.open:
            sample = self.samples.get(one.generation)
            if sample and not one.hung and (now - one.begun).total_seconds() > HUNG_AFTER_S:
                one.hung = True
                side = sample.revisions[one.revision]
                events = {kind: count + 1 for kind, count in side.events.items()}
                sample.revisions[one.revision] = replace(
                    side, requests=side.requests + 1, units=side.units + 1, events=events
                )

    def _late(self, sample: GenerationCounts, now: datetime) -> GenerationCounts:
        """As it is now, with what is known of requests that have not ended."""
        sides = dict(sample.revisions)
        for one in self.open:
            age_s = (now - one.begun).total_seconds()
            if one.generation == sample.generation and age_s > BOUNDS["ttft"][0]:
                side = sides[one.revision]
                buckets = [*side.late.get("ttft", {}).get(STRATUM, (0,) * 6)]
                buckets[bisect_left(BOUNDS["ttft"], age_s)] += 1
                sides[one.revision] = replace(side, late={"ttft": {STRATUM: tuple(buckets)}})
        return replace(
            sample,
            revisions=sides,
            shadow=dict(sample.shadow),
            twins=dict(sample.twins),
            agreements=dict(sample.agreements),
        )

    def seen(self, inflight: dict[str, int], now: datetime) -> Gateway:
        """As the operator sees it."""
        if not self.reachable:
            return Gateway(self.name, self.ready, reachable=False)
        last = now if self.held or any(inflight.values()) else self.last
        return Gateway(
            self.name,
            self.ready,
            True,
            self.generation,
            dict(inflight),
            self.incarnation,
            self.cut_off,
            BOUNDS,
            tuple(self._late(sample, now) for sample in self.samples.values()),
            held=self.held,
            known_s=(now - self.since).total_seconds(),
            last_request_s=(now - last).total_seconds() if last else None,
            digest=self.digest,
            weights=dict(self.weights),
            objectives=dict(self.objectives),
            accuracy=self.accuracy,
        )


def _split(sums: dict[str, int], position: float) -> str:
    """The first whose cumulative weight, in percent, exceeds the position."""
    return next(name for name, upto in sums.items() if position < upto)
