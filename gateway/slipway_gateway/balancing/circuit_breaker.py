"""Circuit breakers: a deployment whose requests fail in a row gets none for a while, then one at a time (pure).

Ejection takes single endpoints away, and never the last one; a breaker is for all of a deployment. Its numbers are
those of Istio's outlierDetection: https://istio.io/latest/docs/reference/config/networking/destination-rule/
"""

from collections.abc import Callable, Mapping

from slipway_contracts.resilience import LONGEST_EJECTION_S, CircuitBreaker

from ..routing.table import Route

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half_open"


class Breaker:
    """The breaker of one deployment at one gateway. `now_s`: seconds of one clock."""

    def __init__(self) -> None:
        self._failures = 0  # in a row
        self._openings = 0  # in a row
        self._until_s = 0.0
        self._is_probed = False

    def state(self, now_s: float) -> str:
        """CLOSED, OPEN or HALF_OPEN."""
        if not self._openings:
            return CLOSED
        return OPEN if now_s < self._until_s else HALF_OPEN

    def begin(self, now_s: float) -> str:
        """A request comes: CLOSED or HALF_OPEN, where it may be sent and `ended` must follow; else OPEN.

        While it is half open, one request at a time is sent.
        """
        state = self.state(now_s)
        if state == HALF_OPEN:
            if self._is_probed:
                return OPEN
            self._is_probed = True
        return state

    def opens_again_s(self, now_s: float) -> float:
        """Seconds until a request may be sent again."""
        return max(0.0, self._until_s - now_s)

    def ended(self, rule: CircuitBreaker, now_s: float, sent_in: str, *, failed: bool | None) -> bool:
        """A request that was sent has ended; returns whether the breaker opens. `sent_in`: what `begin` returned.

        `failed`: None where it is no evidence, because its client left or the deployment was only busy.
        """
        if sent_in == HALF_OPEN:
            self._is_probed = False
        elif self._openings:
            return False  # it was sent before the breaker opened
        if failed is None:
            return False
        if not failed:
            self._failures = self._openings = 0
            return False
        self._failures += 1
        if sent_in == CLOSED and self._failures < rule.consecutive_5xx_errors:
            return False
        self._openings += 1
        self._failures = 0
        self._until_s = now_s + min(rule.base_ejection_seconds * self._openings, LONGEST_EJECTION_S)
        return True


class CircuitBreakers:
    """Breakers of all routes that have a rule."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._breakers: dict[tuple[str, str], Breaker] = {}

    def follow(self, routes: Mapping[str, Route]) -> None:
        """Adopts a new table: forgets routes that have no rule now, or another uid."""
        kept = {(route.name, route.uid) for route in routes.values() if route.circuit_breaker}
        self._breakers = {key: breaker for key, breaker in self._breakers.items() if key in kept}

    def begin(self, route: Route) -> str:
        """A request for a route comes: as of `Breaker.begin`. CLOSED where the route has no rule."""
        return CLOSED if route.circuit_breaker is None else self._of(route).begin(self._clock())

    def ended(self, route: Route, sent_in: str, *, failed: bool | None) -> bool:
        """A request that was sent has ended; returns whether the breaker opens."""
        rule = route.circuit_breaker
        return rule is not None and self._of(route).ended(rule, self._clock(), sent_in, failed=failed)

    def opens_again_s(self, route: Route) -> float:
        """Seconds until a request may be sent to a route again."""
        return self._of(route).opens_again_s(self._clock())

    @property
    def open(self) -> int:
        """How many are not closed."""
        now_s = self._clock()
        return sum(breaker.state(now_s) != CLOSED for breaker in self._breakers.values())

    def _of(self, route: Route) -> Breaker:
        return self._breakers.setdefault((route.name, route.uid), Breaker())
