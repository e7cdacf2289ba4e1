"""Rules that choose the number of pods from what can be scraped: ours, and those that people use (pure).

Each is a function of a `View` that keeps its own memory; `grid` has the parameters among which the first day chooses.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from bench.capacity.pods import BUDGET, ITL_LIMIT_S, START_S, TTFT_LIMIT_S, View
from bench.capacity.traces import DAY_S, STEP_S
from slipway_operator.scaling_model.capacity_model import Capacity, CapacityModel, PodLoad
from slipway_operator.scaling_model.forecast import Forecast
from slipway_operator.scaling_model.replicas import Carries, Look, Memory, Policy, decide
from slipway_operator.scaling_model.step_fit import PROMPT_COST

LEAST, MOST = 1, 40
_TOLERANCE = 0.1  # of Kubernetes' controller
_WINDOW_STEPS = 6  # a minute
_LEARN_STEPS, _DECIDE_STEPS = 3, 2  # ours learns from every third step and decides in every second one

Rule = Callable[[View], int]
Parameters = tuple[float, ...]


@dataclass(slots=True)
class Hpa:
    """Kubernetes' controller on an AverageValue: tolerance, its default behavior, and windows in seconds."""

    window_s: float = 300.0
    up_window_s: float = 0.0
    wants: deque[tuple[float, int]] = field(default_factory=deque)

    def follow(self, view: View, wanted: float) -> int:
        """`wanted`: the metric by its target."""
        present = view.desired
        pods = present if abs(1 - wanted / present) <= _TOLERANCE else max(LEAST, math.ceil(wanted - 1e-9))
        self.wants.append((view.at_s, pods))
        while self.wants[0][0] < view.at_s - max(self.window_s, self.up_window_s):
            self.wants.popleft()
        down = max(want for at, want in self.wants if at >= view.at_s - self.window_s)
        up = min(want for at, want in self.wants if at >= view.at_s - self.up_window_s)
        if up > present:
            return min(MOST, up, max(present + 4, 2 * present))
        return max(LEAST, down) if down < present else present


def static(pods: float) -> Rule:
    """Always the same."""
    return lambda _: int(pods)


def queue_depth(target: float) -> Rule:
    """A HorizontalPodAutoscaler on waiting requests for each pod."""
    hpa = Hpa()
    return lambda view: hpa.follow(view, view.waiting / target)


def tokens(target: float) -> Rule:
    """As KEDA's Prometheus scaler is used: generated tokens of the last minute for each pod."""
    hpa, recent = Hpa(), deque[float](maxlen=_WINDOW_STEPS)

    def rule(view: View) -> int:
        recent.append(view.generated)
        return hpa.follow(view, sum(recent) / len(recent) / target)

    return rule


def llm_d(up: float, down: float) -> Rule:
    """llm-d's control law (guides/workload-autoscaling/README.slo-aware.md of llm-d/llm-d).

    A tail of the latency by its limit, clamped at 2, as a mean of 45 s; credit for starting pods on the way up; up
    after 30 s by at most 100 % or 4 pods in 60 s, down one pod in 120 s after 180 s. Its thresholds as published are
    0.55 and 0.40, and others where the base latency is close to the limit. Here the tail is the 95th percentile.
    """
    recent, wants = deque[float](maxlen=5), deque[tuple[float, int]]()
    changed = [-math.inf, -math.inf]

    def rule(view: View) -> int:
        recent.append(min(2.0, max(view.ttft_s / TTFT_LIMIT_S, view.itl_s / ITL_LIMIT_S)))
        s, n, r = sum(recent) / len(recent), view.desired, view.ready
        credit = r / n if 0 < r < n else 1.0
        wanted = n
        if s > up:
            wanted = n + math.ceil(n * (s * credit / up - 1))
        elif s < down:
            wanted = n - math.floor(n * (1 - s / down))
        wants.append((view.at_s, wanted))
        while wants[0][0] < view.at_s - 180:
            wants.popleft()
        most = max(want for _, want in wants)
        least = min(want for at, want in wants if at >= view.at_s - 30)
        if least > n and view.at_s - changed[0] >= 60:
            changed[0] = view.at_s
            return min(MOST, least, max(2 * n, n + 4))
        if most < n and view.at_s - changed[1] >= 120:
            changed[1] = view.at_s
            return max(LEAST, n - 1)
        return n

    return rule


@dataclass(slots=True)
class Ours:
    """The operator's own modules, fed with what it scrapes: the capacity model, the forecast and the decision."""

    policy: Policy
    forecasts: bool
    model: CapacityModel = field(default_factory=CapacityModel)
    forecast: Forecast = field(default_factory=lambda: Forecast(DAY_S))
    memory: Memory = field(default_factory=Memory)
    views: deque[View] = field(default_factory=lambda: deque(maxlen=4))
    capacity: Capacity | None = None
    prompt_cost: float = PROMPT_COST
    looks: int = 0

    def __call__(self, view: View) -> int:
        self.views.append(view)
        self.looks += 1
        if self.looks % _LEARN_STEPS == 0:
            self._learn(view)
        if self.looks % _DECIDE_STEPS:
            return view.desired
        demand, work = self._demand(view)
        if demand is not None:
            self.forecast = self.forecast.add(view.at_s, demand)
        peak = self.forecast.peak(view.at_s, view.at_s + self.model.start_s + 30.0) if self.forecasts else None
        look = Look(
            view.at_s,
            view.desired,
            view.ready,
            view.starting,
            demand,
            view.waiting * work,
            int(view.running + view.waiting),
            max(view.ttft_s / TTFT_LIMIT_S, view.itl_s / ITL_LIMIT_S),
            peak,
            revisions=(Carries("a", 1.0, self.capacity),),
        )
        decision = decide(self.policy, look, self.memory)
        self.memory = decision.memory
        return decision.desired

    def _learn(self, view: View) -> None:
        if view.ready:
            pods = view.ready
            load = PodLoad(
                view.running / pods, view.waiting / pods, view.generated / pods, view.prompts / pods,
                view.requests / pods,
            )  # fmt: skip
            self.model = self.model.observe([load] * pods, STEP_S, view.missed)
        if not self.model.starts_s:
            self.model = self.model.started(START_S)
        self.capacity, self.prompt_cost = self.model.capacity(BUDGET), self.model.prompt_cost

    def _demand(self, view: View) -> tuple[float | None, float]:
        """Work that arrives per second: what was served, and what the queue grew by; and the work of a request."""
        first, seconds = self.views[0], 10.0 * len(self.views)
        served = sum(each.generated + self.prompt_cost * each.prompts for each in self.views) / len(self.views)
        requests = sum(each.requests for each in self.views) / len(self.views)
        work = served / requests if requests else 0.0
        grown = (view.waiting - first.waiting) * work / max(10.0, seconds - 10.0)
        return max(0.0, served + grown), work


def ours(utilization: float, window_s: float, *, forecasts: bool = True) -> Rule:
    """Reactive, and with the forecast."""
    return Ours(Policy(LEAST, MOST, utilization=utilization, window_s=window_s), forecasts)


@dataclass(frozen=True, slots=True)
class Contender:
    """A rule by its parameters, and those among which the first day chooses."""

    make: Callable[..., Rule]
    grid: tuple[Parameters, ...]


CONTENDERS: Mapping[str, Contender] = {
    "Slipway": Contender(ours, tuple((u, w) for u in (0.85, 0.95) for w in (120.0, 300.0))),
    "Slipway, reactive": Contender(
        lambda *parameters: ours(*parameters, forecasts=False),
        tuple((u, w) for u in (0.85, 0.95) for w in (120.0, 300.0)),
    ),
    "static": Contender(static, tuple((float(pods),) for pods in range(4, 20, 2))),
    "HPA on queue depth": Contender(queue_depth, tuple((target,) for target in (0.25, 1.0, 4.0, 16.0))),
    "KEDA on tokens": Contender(tokens, tuple((target,) for target in (600.0, 700.0, 800.0, 900.0, 1000.0))),
    "llm-d": Contender(llm_d, ((0.55, 0.4), (0.7, 0.55), (0.85, 0.7), (0.95, 0.8))),
}


def clairvoyant(needs: Iterator[int]) -> Rule:
    """What was computed before: the number of pods for each step."""
    return lambda _: next(needs)
