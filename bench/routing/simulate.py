"""Runs a trace against simulated pods by one rule."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from bench.routing.pods import EngineSpeed, KvCache, Pod, Work, block_hashes
from bench.routing.policies import POLICIES
from bench.routing.trace import Session, tokens


@dataclass(slots=True)
class Outcome:
    """Of one rule. `oracle_tokens`: prompt tokens that some earlier prompt had at the same place.

    `least_loaded`: choices of a pod with as few requests as any.
    """

    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    oracle_tokens: int = 0
    least_loaded: int = 0
    took_s: float = 0.0
    by_pod: dict[str, int] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        return len(self.ttft_s)

    @property
    def hit_share(self) -> float:
        """Of what a perfect oracle with one cache for all pods hits."""
        return self.cached_tokens / self.oracle_tokens if self.oracle_tokens else math.nan


class _Simulation:
    def __init__(
        self, sessions: Sequence[Session], pods: int, policy: str, speed: EngineSpeed, begins_s: float
    ) -> None:
        self._names = tuple(f"http://10.0.{n // 256}.{n % 256}:8000" for n in range(pods))
        self._pods = {name: Pod(speed, KvCache(speed.cache_tokens)) for name in self._names}
        self._policy = POLICIES[policy](self._names)
        self._oracle = KvCache(10**12)
        self._order, self._events = count(), list[tuple[float, int, str | tuple[Session, int]]]()
        self._stepping: set[str] = set()
        self._working: dict[int, tuple[Session, int, str, object]] = {}
        self.outcome = Outcome()
        for number, session in enumerate(sessions):
            self._at(begins_s * number / len(sessions), (session, 0))

    def _at(self, when_s: float, what: str | tuple[Session, int]) -> None:
        """`what`: the pod whose step ends, or the session whose turn begins."""
        heapq.heappush(self._events, (when_s, next(self._order), what))

    def run(self) -> Outcome:
        while self._events:
            now_s, _, what = heapq.heappop(self._events)
            if isinstance(what, str):
                self._step(what, now_s)
            else:
                self._send(*what, now_s)
            self.outcome.took_s = now_s
        return self.outcome

    def _send(self, session: Session, number: int, now_s: float) -> None:
        turn, text = session.turns[number], session.text(number)
        hashes, prompt = block_hashes(text), tokens(text)
        name = self._policy.pick(session.name, text, hashes)
        loads = self._policy.loads
        self.outcome.least_loaded += loads[name] == min(loads[pod] for pod in self._names)
        state = self._policy.began(name, text, hashes)
        self.outcome.prompt_tokens += prompt
        self.outcome.oracle_tokens += min(self._oracle.cached_tokens(hashes), prompt - 1)
        self._oracle.add(hashes)
        self.outcome.by_pod[name] = self.outcome.by_pod.get(name, 0) + 1
        work = Work(hashes, prompt, turn.output_tokens, now_s)
        self._working[id(work)] = (session, number, name, state)
        self._pods[name].take(work)
        if name not in self._stepping:
            self._stepping.add(name)
            self._at(now_s, name)

    def _step(self, name: str, now_s: float) -> None:
        pod = self._pods[name]
        if pod.idle:
            self._stepping.discard(name)
            return
        took_s, begun, ended = pod.step(now_s)
        for work in begun:
            _, _, _, state = self._working[id(work)]
            self._policy.first(name, state)
            self.outcome.ttft_s.append(work.first_s - work.came_s)
            self.outcome.cached_tokens += work.cached
        for work in ended:
            session, number, _, state = self._working.pop(id(work))
            self._policy.ended(name, state)
            self.outcome.e2e_s.append(work.end_s - work.came_s)
            if number + 1 < len(session.turns):
                self._at(work.end_s + session.turns[number].think_s, (session, number + 1))
        self._at(now_s + took_s, name)


def simulate(sessions: Sequence[Session], pods: int, policy: str, speed: EngineSpeed, begins_s: float) -> Outcome:
    """`begins_s`: within this time the sessions begin, at equal distances."""
    return _Simulation(sessions, pods, policy, speed, begins_s).run()
