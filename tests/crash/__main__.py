"""`python -m tests.crash`: every call of a rollout, an abort and a supersede is interfered with; `QUICK=1`: a sample.

Writes build/reports/crash.json and exits 1 when an end state differs. SEED=n: another sample; FAULTS=a,b: these only.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from devcluster.controlplane import api_server
from testkit.report import Bar, report, write
from tests.crash import campaign
from tests.crash.calls import KILLS, Fault, is_write
from tests.crash.campaign import Outcome, Reference
from tests.crash.world import World
from tests.support.api_server import install_crds


class Progress:
    """One line a history that failed, and one now and then."""

    def __init__(self, cases: int) -> None:
        self._cases, self._started = cases, time.monotonic()
        self.done = self.failed = 0

    def report(self, outcome: Outcome) -> None:
        """A history ended."""
        self.done += 1
        if outcome.failure:
            self.failed += 1
            print(f"\nFAILED {outcome.failure}\n", flush=True)
        if self.done % 10 == 0 or self.done == self._cases:
            elapsed_s = time.monotonic() - self._started
            left_s = elapsed_s / self.done * (self._cases - self.done)
            line = f"{self.done}/{self._cases} histories, {self.failed} failed, {elapsed_s:.0f} s, {left_s:.0f} s left"
            print(line, flush=True)


def rows(known: dict[str, Reference], outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Per scenario and fault: how many calls were hit, and how it ended."""
    found = []
    for name, reference in known.items():
        for fault in Fault:
            own = [item for item in outcomes if item.case.scenario == name and fault in item.case.targets.values()]
            hits = [point for item in own for point, done in item.hit if done is fault]
            planned = sum(wanted is fault for item in own for wanted in item.case.targets.values())
            found.append(
                {
                    "scenario": name,
                    "fault": fault.value,
                    "calls_of_the_undisturbed_history": sum(reference.counts.values()),
                    "injection_points": len(hits),
                    "of_these_writes": sum(is_write(point.kind) for point in hits),
                    "not_reached": planned - len(hits) if not any(item.failure for item in own) else None,
                    "operators_that_gave_up": sum(len(item.exits) for item in own),
                    "other_end_states": sum(bool(item.failure) for item in own),
                }
            )
    return found


def bars(known: dict[str, Reference], outcomes: list[Outcome]) -> list[Bar]:
    """What must hold."""
    failed = sum(bool(item.failure) for item in outcomes)
    hits = Counter(fault for item in outcomes for _, fault in item.hit)
    missing = len(spared(known, outcomes))
    return [
        Bar("histories with another end state", failed, "<=0", failed == 0),
        Bar("kinds of calls never killed before or never killed after", missing, "<=0", not missing),
        Bar("injection points", hits.total(), ">0", hits.total() > 0),
    ]


def spared(known: dict[str, Reference], outcomes: list[Outcome]) -> list[str]:
    """Kinds of calls that no operator was killed at."""
    return sorted(kind for fault in KILLS for kind in campaign.uncovered(known, outcomes, fault))


def conclude(known: dict[str, Reference], outcomes: list[Outcome], seed: int | None) -> bool:
    """Print and write; whether all bars hold."""
    table, held = rows(known, outcomes), bars(known, outcomes)
    for row in table:
        print("  ".join(f"{name}={value}" for name, value in row.items()))
    print(*held, *spared(known, outcomes), sep="\n")
    write(report("crash", table, held, seed=seed, spared=spared(known, outcomes)))
    return all(bar.ok for bar in held)


async def main(kubeconfig: Path, folder: Path, faults: set[str], quick: bool, seed: int) -> bool:
    """Play everything; whether all bars hold."""
    async with World(kubeconfig, folder) as world:
        known = await campaign.references(world)
        for name, reference in known.items():
            print(f"{name}: {sum(reference.counts.values())} calls of {len(reference.counts)} kinds")
        cases = list(campaign.sample(known, random.Random(seed)) if quick else campaign.enumeration(known))
        cases = [case for case in cases if faults & set(case.targets.values())]
        progress = Progress(len(cases))
        outcomes = await campaign.run(world, known, cases, progress.report)
    return conclude(known, outcomes, seed if quick else None)


if __name__ == "__main__":
    chosen = int(os.environ.get("SEED") or random.randrange(10**6))
    named = set(filter(None, os.environ.get("FAULTS", "").split(","))) or set(Fault)
    sampled = bool(os.environ.get("QUICK"))
    print(f"a sample, SEED={chosen}" if sampled else "every call")
    with tempfile.TemporaryDirectory(prefix="slipway-crash-") as scratch, api_server() as server:
        install_crds(server)
        sys.exit(0 if asyncio.run(main(server, Path(scratch), named, sampled, chosen)) else 1)
