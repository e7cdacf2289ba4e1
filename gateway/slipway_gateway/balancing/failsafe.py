"""What a gateway decides without the operator (pure: times come from the caller, in seconds).

Weights that are not renewed in time go back to the stable revision, if that is configured.

A revision under test is cut off when its last `failures` attempts all failed, or four of five of its last
`4 * failures`, and this lasts for `after_s` (by then a pod that died has left the table), while the other revisions do
not fail too. Failures of one client alone cut nothing off while the route has other clients. The cut-off revision's
requests go to the other revisions. After a cool-down it gets trials, one request a second: three that succeed undo the
cut, one that fails doubles the cool-down. A new generation of the route starts without history.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from slipway_contracts.route_table import Backend

from ..routing.table import Route, base_revision

WINDOW = 4  # results that are kept of each revision, in multiples of `failures`
HARD_SHARE, SICK_SHARE = 0.8, 0.4
TRIAL_GAP_S = 1.0
TRIALS = 3
MAX_COOLDOWN_S = 600.0


@dataclass(frozen=True, slots=True)
class CutOffRule:
    """`failures` 0: no revision is ever cut off."""

    failures: int = 10
    after_s: float = 5.0
    cooldown_s: float = 60.0


class AttemptResult(msgspec.Struct):
    """Result of one attempt; a response that began well may still fail. `client`: the sender."""

    failed: bool
    client: str = ""


@dataclass(slots=True)
class CutOff:
    """A revision that gets no requests except trials. `until_s`: when the next trial may be sent.

    `trying`: the cool-down is over. `successes`: of trials.
    """

    revision: str
    reason: str
    until_s: float
    cooldown_s: float
    trying: bool = False
    successes: int = 0


@dataclass(slots=True)
class RouteHealth:
    """One route at one generation: how its revisions did, and which one is cut off."""

    rule: CutOffRule
    backends: Sequence[Backend]
    cut: CutOff | None = None
    _tries: dict[str, deque[AttemptResult]] = field(default_factory=dict)
    _hard_since_s: dict[str, float] = field(default_factory=dict)

    def began(self, revision: str, client: str = "") -> AttemptResult:
        """An endpoint of a revision began a good response. `failed` may change the returned result later."""
        one = self._add(revision, client, failed=False)
        if self._hard_since_s and revision in self._hard_since_s and not self._cut_off_reason(revision):
            del self._hard_since_s[revision]
        if self.cut and self.cut.revision == revision and self.cut.trying:
            self.cut.successes += 1
            if self.cut.successes >= TRIALS:
                self.cut = None
                self._tries.clear()
                self._hard_since_s.clear()
        return one

    def failed(self, revision: str, one: AttemptResult | None, now_s: float, client: str = "") -> None:
        """An endpoint of a revision failed; cuts the revision off if the rule applies.

        `one`: the result of `began` when the endpoint broke off a response; None: it began no good response.
        """
        if one:
            one.failed = True
        else:
            self._add(revision, client, failed=True)
        if self.cut is None:
            reason = self._cut_off_reason(revision)
            if not reason:
                self._hard_since_s.pop(revision, None)
            elif now_s - self._hard_since_s.setdefault(revision, now_s) >= self.rule.after_s:
                self.cut = CutOff(revision, reason, now_s + self.rule.cooldown_s, self.rule.cooldown_s)
        elif self.cut.revision == revision and self.cut.trying:
            # Requests that were in flight at the cut are no new evidence; a trial is.
            longer_s = min(2 * self.cut.cooldown_s, MAX_COOLDOWN_S)
            self.cut = CutOff(revision, self.cut.reason, now_s + longer_s, longer_s)

    def avoids(self, revision: str, now_s: float) -> bool:
        """Whether a request for this revision must go to another one, because it is cut off.

        After the cool-down one request a second is let through, as a trial.
        """
        if self.cut is None or self.cut.revision != revision:
            return False
        if now_s < self.cut.until_s:
            return True
        self.cut.until_s, self.cut.trying = now_s + TRIAL_GAP_S, True
        return False

    def _add(self, revision: str, client: str, *, failed: bool) -> AttemptResult:
        tries = self._tries.get(revision)
        if tries is None:
            tries = self._tries[revision] = deque(maxlen=max(1, WINDOW * self.rule.failures))
        one = AttemptResult(failed, client)
        tries.append(one)
        return one

    def _cut_off_reason(self, revision: str) -> str:
        """Why a revision must be cut off; empty when it need not or cannot be."""
        others = [backend for backend in self.backends if backend.revision != revision and backend.weight]
        tested = bool(self.backends) and self.backends[0].revision == revision and self.backends[0].weight > 0
        if not (self.rule.failures and tested and others) or any(self._failing_too(one.revision) for one in others):
            return ""
        tries = self._tries.get(revision, deque[AttemptResult](maxlen=1))
        last = list(tries)[-self.rule.failures :]
        if len(last) == self.rule.failures and all(one.failed for one in last) and self._from_several_clients(last):
            return f"its last {len(last)} tries failed"
        bad = [one for one in tries if one.failed]
        if len(tries) == tries.maxlen and len(bad) >= HARD_SHARE * len(tries) and self._from_several_clients(bad):
            return f"{len(bad)} of its last {len(tries)} tries failed"
        return ""

    def _from_several_clients(self, failed: Collection[AttemptResult]) -> bool:
        """Whether failures count: those of one client alone, which may cause them, only if the route has no other."""
        if len({one.client for one in failed}) > 1:
            return True
        return len({one.client for tries in self._tries.values() for one in tries}) == 1

    def _failing_too(self, revision: str) -> bool:
        """Whether this other revision fails too: then the tested one is not the cause, and a cut does not help."""
        last = list(self._tries.get(revision, ()))[-max(1, self.rule.failures) :]
        return sum(one.failed for one in last) > SICK_SHARE * len(last)


def find_split(route: Route) -> tuple[Backend, Backend] | None:
    """The revision under test and the stable one, where requests are split between two; else None.

    Baselines, which are copies of stable, are left out.
    """
    weighted = [one for one in route.backends if one.weight and base_revision(one.revision) == one.revision]
    return (weighted[0], weighted[1]) if len(weighted) == 2 else None


def fall_back_to_stable(route: Route, ready_stable: int) -> Route:
    """The route with its weights back at the stable revision, as far as its `ready_stable` ready pods can carry them.

    The route is returned unchanged unless a revision is under test beside a stable one that still has weight.
    """
    found = find_split(route)
    if found is None or not ready_stable:
        return route
    tested, stable = found
    carries = 100 if not route.replicas else min(100, 100 * ready_stable // route.replicas)
    left = min(tested.weight, 100 - carries)
    weights = {tested.revision: left, stable.revision: 100 - left}
    changed = [replace(backend, weight=weights.get(backend.revision, 0)) for backend in route.backends]
    return replace(route, backends=tuple(changed))
