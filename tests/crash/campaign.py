"""Plays histories side by side, with faults, and collects their outcomes."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.crash.calls import ERRORS, KILLS, Fault, Point
from tests.crash.history import Astray, play
from tests.crash.scenarios import SCENARIOS
from tests.crash.world import World

LANES = 12  # histories at the same time: they mostly wait, for a poll or a second to pass
FAULTS_IN_ONE = 8  # of a sample
# The enumeration has a fault in one history every so many calls: a new operator needs some thirty to come to its work,
# and a held call takes 10 s.
APART = dict.fromkeys(KILLS, 30) | dict.fromkeys(ERRORS, 10) | {Fault.TIMEOUT: 60}

Targets = dict[Point, Fault]


@dataclass(frozen=True)
class Reference:
    """An undisturbed history: its end state, and its calls by kind."""

    state: dict[str, Any]
    counts: Counter[str]

    def points(self) -> list[Point]:
        """Every call."""
        return [Point(kind, number) for kind in sorted(self.counts) for number in range(1, self.counts[kind] + 1)]


@dataclass(frozen=True)
class Case:
    """A scenario, and the fault of each chosen call."""

    scenario: str
    targets: Targets


@dataclass
class Outcome:
    """The outcome of a case."""

    case: Case
    hit: list[tuple[Point, Fault]] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)  # of operators that gave up by themselves and were restarted
    calls: int = 0
    seconds: float = 0.0
    failure: str = ""

    @property
    def missed(self) -> int:
        """Targets that did not come: a history has some reads more or fewer than the undisturbed one."""
        return len(self.case.targets) - len(self.hit)


async def references(world: World) -> dict[str, Reference]:
    """Every scenario, undisturbed."""
    played = await asyncio.gather(*(play(world, name) for name in SCENARIOS))
    return {name: Reference(state, seat.tap.counts) for name, (state, seat) in zip(SCENARIOS, played, strict=True)}


def enumeration(known: dict[str, Reference]) -> Iterator[Case]:
    """Every call of every scenario with every fault."""
    for fault in Fault:
        for name, reference in known.items():
            yield from (Case(name, targets) for targets in _apart(reference.points(), fault))


def sample(
    known: dict[str, Reference], chance: random.Random, kinds_per_error: int = 100, kinds_killed: int = 100
) -> Iterator[Case]:
    """One call of so many kinds killed before and after, of some kinds for other faults; several in one history."""
    kinds_of_all = sorted({kind for reference in known.values() for kind in reference.counts})
    chosen: dict[str, list[tuple[Point, Fault]]] = {name: [] for name in known}
    for fault in (*KILLS, *ERRORS):
        # A held call costs 10 s.
        wanted = kinds_killed if fault in KILLS else len(known) if fault is Fault.TIMEOUT else kinds_per_error
        kinds = chance.sample(kinds_of_all, min(wanted, len(kinds_of_all)))
        for kind in kinds:
            name = chance.choice([name for name in known if known[name].counts[kind]])
            # From the first half: after a kill fewer calls may be left.
            number = chance.randint(1, (known[name].counts[kind] + 1) // 2)
            chosen[name].append((Point(kind, number), fault))
    for name, targets in chosen.items():
        yield from (Case(name, part) for part in _parts(targets, chance))


def _apart(points: list[Point], fault: Fault) -> Iterator[Targets]:
    """All points, spread over as many histories as they are to be apart."""
    for first in range(APART[fault]):
        targets = dict.fromkeys(points[first :: APART[fault]], fault)
        if targets:
            yield targets


def _parts(targets: list[tuple[Point, Fault]], chance: random.Random) -> Iterator[Targets]:
    """Bounded histories; one call is hit once in each."""
    chance.shuffle(targets)
    while targets:
        part: Targets = {}
        for point, fault in list(targets):
            if point not in part and len(part) < FAULTS_IN_ONE:
                part[point] = fault
                targets.remove((point, fault))
        yield part


async def run(
    world: World, known: dict[str, Reference], cases: Iterable[Case], report: Callable[[Outcome], None]
) -> list[Outcome]:
    """Play all cases, some at a time."""
    waiting, outcomes = iter(cases), []

    async def lane() -> None:
        for case in waiting:
            outcome = await _outcome(world, known, case)
            outcomes.append(outcome)
            report(outcome)

    await asyncio.gather(*(lane() for _ in range(LANES)))
    return outcomes


async def _outcome(world: World, known: dict[str, Reference], case: Case) -> Outcome:
    outcome, started = Outcome(case), time.monotonic()
    try:
        _, seat = await play(world, case.scenario, case.targets, known[case.scenario].state)
    except Astray as error:
        outcome.failure, seat = str(error), error.seat
    outcome.hit, outcome.exits = seat.tap.hit, seat.exits
    outcome.calls = sum(seat.tap.counts.values())
    outcome.seconds = time.monotonic() - started
    return outcome


def uncovered(known: dict[str, Reference], outcomes: Iterable[Outcome], fault: Fault) -> set[str]:
    """Kinds of calls that this fault never hit."""
    kinds = {kind for reference in known.values() for kind in reference.counts}
    return kinds - {point.kind for outcome in outcomes for point, done in outcome.hit if done is fault}
