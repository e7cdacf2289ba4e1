"""Counts requests of the fast lane with other gateways: its calls come some at a time, and answers go back so too."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..quotas.policy import Budget, Policy
from ..quotas.shared import BUCKETS
from .counters import SharedCounters

if TYPE_CHECKING:
    from slipway_plane import _native

_NOTHING = dict.fromkeys(BUCKETS, 0)


class LaneCalls:
    """`may_spend`: whether something is left of a tenant's budget, as far as that is known here.

    `answer`: gives answers to the lane, by ticket; returns the tickets that no longer wait for theirs.
    """

    def __init__(
        self,
        counters: SharedCounters | None,
        may_spend: Callable[[str, Budget], bool],
        answer: "Callable[[list[tuple[int, list[float] | None]]], list[int]]",
    ) -> None:
        self._counters, self._may_spend, self._answer = counters, may_spend, answer
        self.take_more: Callable[[], None] = lambda: None  # takes what came meanwhile, once answers were given
        self._answers: list[tuple[int, list[float] | None]] = []
        self._taken: dict[int, tuple[str, str]] = {}  # of these answers, tenant and id by ticket

    def take(self, calls: "Sequence[_native.Call]", policy_of: Callable[[str], Policy | None]) -> None:
        """Has requests counted. `policy_of`: of a tenant; None: it is gone."""
        for ticket, tenant, id_, amounts in calls:
            policy = policy_of(tenant)
            if policy is None or not self._may_spend(tenant, policy.budget):
                self._put(ticket, None)
            elif self._counters is None or not policy.limits.any:
                self._put(ticket, [])
            else:
                named, on_answer = zip(BUCKETS, amounts, strict=True), partial(self._answered, ticket, tenant, id_)
                self._counters.call(tenant, id_, policy.limits, dict(named), on_answer)

    def settle(self, settlements: "Sequence[_native.Settlement]") -> None:
        """Requests that were counted have ended."""
        for tenant, id_, used in settlements:
            if self._counters is not None:
                amounts = zip(BUCKETS, used, strict=True)
                self._counters.settle(tenant, id_, {name: amount for name, amount in amounts if amount is not None})

    def _answered(self, ticket: int, tenant: str, id_: str, full_s: list[float] | None, *, known: bool) -> None:
        if not known:
            self._give_back(tenant, id_)
        elif full_s is not None and self._counters is not None:
            self._counters.begin(tenant, id_, sent=True)
            self._taken[ticket] = tenant, id_
        self._put(ticket, full_s)

    def _put(self, ticket: int, full_s: list[float] | None) -> None:
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._give_answers)
        self._answers.append((ticket, full_s))

    def _give_answers(self) -> None:
        answers, taken = self._answers, self._taken
        self._answers, self._taken = [], {}
        for ticket in self._answer(answers):
            if ticket in taken:
                self._give_back(*taken[ticket])
        self.take_more()

    def _give_back(self, tenant: str, id_: str) -> None:
        """The request goes on without what it has taken, or may have taken."""
        if self._counters is not None:
            self._counters.begin(tenant, id_, sent=True)
            self._counters.settle(tenant, id_, _NOTHING)
