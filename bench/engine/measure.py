"""One turn of one peer: start it, check it, load it closed and open, look at its memory, end it."""

import asyncio
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.engine import machine
from bench.engine.figures import Objective, Row, figures, goodput
from bench.engine.load import Run, Target, closed_loop, open_loop
from bench.engine.models import warm
from bench.engine.peers import Peer, Place
from bench.engine.shapes import Shape
from bench.engine.workload import Prompt, closed, requests_at
from bench.engine.workload import open_loop as arrivals
from testkit.world.program import DidNotStart, Server, running

WATCH_S = 4.0  # between two looks at the memory: each costs the kernel some milliseconds
WARM_PROMPTS = 2
FIRST_LIMIT_S = 240.0  # for the first answers: some peers load or compile then


@dataclass(frozen=True, slots=True)
class Plan:
    """What every peer goes through in a round. `rate_per_s`: of the open loop; 0 leaves it out."""

    shape: Shape
    concurrencies: tuple[int, ...]
    sampled: tuple[int, ...]  # concurrencies of the loads that are sampled
    level_limit_s: float  # a slower peer's load is cut off, and the report notes it
    rate_per_s: float
    open_s: float
    objective: Objective

    def prompts(self, concurrency: int, round_number: int, kind: str) -> list[Prompt]:
        """The same for all peers of a round, and no words of one load in another: prefixes are cached."""
        return closed(requests_at(concurrency), f"{kind}-{round_number}-{concurrency}", self.shape)


def turn(peer: Peer, place: Place, plan: Plan, round_number: int, log: Path) -> list[Row]:
    """Its rows: a start, one for each concurrency, the open loop, memory. A failed peer has a row with the reason."""
    machine.back_memory()
    warm(place.files)
    launch, target = peer.launch(place)
    named = {"peer": peer.name, "round": round_number}
    try:
        with running(launch, log, peer.start_limit_s) as server:
            rows = list(_measured(server, target, plan, round_number))
    except (DidNotStart, WrongAnswers) as error:
        rows = [{"kind": "failed", "why": str(error)}]
    return [named | row for row in rows]


class WrongAnswers(Exception):
    """The peer does not do the work that the others do."""


def _measured(server: Server, target: Target, plan: Plan, round_number: int) -> Iterator[Row]:
    began = time.perf_counter()
    first = asyncio.run(closed_loop(target, closed(1, f"first-{round_number}", plan.shape), 1, FIRST_LIMIT_S))
    _check(first)
    first_token_s = server.ready_s + first.answers[0].token_times_s[0] - began
    asyncio.run(
        closed_loop(target, closed(WARM_PROMPTS, f"warm-{round_number}", plan.shape), WARM_PROMPTS, FIRST_LIMIT_S)
    )
    yield {
        "kind": "start",
        "ready_s": round(server.ready_s, 2),
        "first_token_s": round(first_token_s, 2),
        "pss_mib": round(server.pss_mib()),
    }
    loads = [("closed", target, plan.concurrencies), ("sampled", target.sampling(), plan.sampled)]
    for kind, requests_to, concurrencies in loads:
        for concurrency in concurrencies:
            prompts = plan.prompts(concurrency, round_number, kind)
            run, seen = _watched(server, closed_loop(requests_to, prompts, concurrency, plan.level_limit_s))
            yield {"kind": kind, "concurrency": concurrency, **figures(run, sampled=kind == "sampled"), **seen}
    if plan.rate_per_s:
        prompts = arrivals(plan.rate_per_s, plan.open_s, f"open-{round_number}")
        run, seen = _watched(server, open_loop(target, prompts, plan.open_s + plan.level_limit_s))
        yield {"kind": "open", "rate_per_s": plan.rate_per_s, **figures(run), **goodput(run, plan.objective), **seen}


def _check(run: Run) -> None:
    """A first request shows whether tokens are counted and streamed as in all other peers."""
    answer, found = run.answers[0], figures(run)
    if answer.error or found["miscounts"]:
        raise WrongAnswers(answer.error or f"The first answer had {', '.join(found['miscounts'])}.")


def _watched(server: Server, load: Awaitable[Run]) -> tuple[Run, Row]:
    """A load with what the machine and the server's memory did meanwhile."""
    return asyncio.run(_watch(server, load))


async def _watch(server: Server, load: Awaitable[Run]) -> tuple[Run, Row]:
    before, used_s, own_s = machine.now(), server.cpu_s(), time.process_time()
    most = [server.pss_mib()]

    async def look() -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            most.append(await asyncio.to_thread(server.pss_mib))

    watcher = asyncio.create_task(look())
    try:
        run = await load
    finally:
        watcher.cancel()
    ours_s = server.cpu_s() - used_s + time.process_time() - own_s
    used = machine.shares(before, machine.now(), ours_s=ours_s)
    used["client_cpu_s"] = round(time.process_time() - own_s, 2)
    return run, used | {"pss_mib": round(max([*most, server.pss_mib()]))}


def order(names: Sequence[str], round_number: int) -> list[str]:
    """AB, BA, AB …: what drifts with time hits each peer from both sides."""
    return list(names) if round_number % 2 else list(reversed(names))
