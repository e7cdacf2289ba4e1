"""Degradation of overloaded deployments: which steps of spec.traffic.degradation are in force (pure).

A deployment is overloaded while its pods refuse requests with 429 or 503 after all attempts. The first step is in force
at once; the next one when refusals go on for RISE_S after that. A step ends QUIET_S after the last refusal.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from slipway_contracts.model_routes.spec import RouteSampling, SamplingCaps
from slipway_contracts.resilience import Degradation

from ..routing.table import Route

RISE_S, QUIET_S = 1.0, 10.0
MODEL, MAX_TOKENS, CHOICES = "model", "max_tokens", "n"


class _Level(NamedTuple):
    """How many steps are in force, since when, and when the last refusal came."""

    steps: int
    since_s: float
    last_s: float


def steps_of(rule: Degradation) -> tuple[str, ...]:
    """The steps of a rule, in their order."""
    declared = ((MODEL, rule.name), (MAX_TOKENS, rule.max_tokens), (CHOICES, rule.single_choice))
    return tuple(step for step, value in declared if value)


def caps_of(rule: Degradation, step: str) -> RouteSampling:
    """What a step imposes on sampling."""
    if step == MAX_TOKENS:
        return RouteSampling(caps=SamplingCaps.model_construct(max_tokens=rule.max_tokens))
    return RouteSampling(caps=SamplingCaps(choices=1))


class Overloads:
    """Overloaded routes of one gateway. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._levels: dict[str, _Level] = {}

    def follow(self, routes: Mapping[str, Route]) -> None:
        """Adopts a new table: forgets routes without degradation."""
        kept = {name for name, route in routes.items() if route.degradation}
        self._levels = {name: level for name, level in self._levels.items() if name in kept}

    def refused(self, route: Route) -> None:
        """All attempts of a request were refused for lack of capacity."""
        if route.degradation is None:
            return
        now_s, level = self._clock(), self._level(route)
        if level is None:
            self._levels[route.name] = _Level(1, now_s, now_s)
        elif now_s - level.since_s >= RISE_S and level.steps < len(steps_of(route.degradation)):
            self._levels[route.name] = _Level(level.steps + 1, now_s, now_s)
        else:
            self._levels[route.name] = level._replace(last_s=now_s)

    def steps(self, route: Route) -> tuple[str, ...]:
        """The steps that are in force."""
        if route.degradation is None or (level := self._level(route)) is None:
            return ()
        return steps_of(route.degradation)[: level.steps]

    @property
    def overloaded(self) -> int:
        """How many routes have a step in force."""
        now_s = self._clock()
        return sum(_after(level, now_s) is not None for level in self._levels.values())

    def _level(self, route: Route) -> _Level | None:
        level = self._levels.get(route.name)
        return _after(level, self._clock()) if level else None


def _after(level: _Level, now_s: float) -> _Level | None:
    """A level as it is after a time without refusals: one step less for each QUIET_S; None: no step is left."""
    quiet = int((now_s - level.last_s) // QUIET_S)
    if not quiet:
        return level
    left = level.steps - quiet
    return _Level(left, now_s, level.last_s + quiet * QUIET_S) if left > 0 else None
