"""The quality of some pairs: whether their texts are equal, and which tokens of stable's each server would choose.

Two texts that differ early differ in all that follows. So the twin's response is also scored by both servers, with one
prefill each: a model as good as stable has stable's tokens as its first choices nearly as often as stable itself.
"""

import asyncio
import secrets

from slipway_contracts.counters import QualityCounts
from slipway_contracts.twin_shadow import TwinShadow

from ..routing.mirroring import is_compared
from ..routing.table import Route
from ..upstream.exchange import UpstreamRequest
from ..upstream.tenant_proof import TenantSigner
from .leg import Leg, LegSender
from .scoring import ScoredTokens, build_scoring_request, count_tokens
from .shadow_request import ShadowRequest
from .transcript import ChoiceTexts


class PairComparison:
    """Compares `percentage` of the pairs of those twin shadows that have `quality` set."""

    def __init__(self, legs: LegSender, percentage: int, signer: TenantSigner) -> None:
        self._legs = legs
        self._percentage = percentage
        self._signer = signer

    def keeps(self, route: Route, shadow: TwinShadow, original: UpstreamRequest) -> bool:
        """Whether the texts of this pair are kept."""
        wanted = bool(shadow.quality) and original.writes_text
        return wanted and is_compared(route, secrets.token_hex(8), self._percentage)

    async def compare(
        self,
        route: Route,
        copy: ShadowRequest,
        pods: tuple[Leg, Leg],
        texts: tuple[ChoiceTexts | None, ChoiceTexts],
        counts: QualityCounts,
    ) -> None:
        """Compares both responses of a pair that has ended and adds the result to `counts`.

        `pods`: canary and its twin. `texts`: of their responses, in the same order; None where canary's ended badly or
        has none that can be compared. Which pairs count depends on the twin alone, so that canary leaves none out.
        """
        canary, twin = texts
        score = build_scoring_request(copy, twin)
        if canary is None:
            counts.unscored += score is not None
            return
        counts.count_texts(equal=canary == twin)
        if score is None:
            return
        self._signer.sign(score.headers, route.deployment)
        # Until both responses are there the pair counts as open: no canary passes by scoring slowly what it loses.
        counts.open += 1
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._legs.fetch(pod.url, score, route.name, pod.revision)) for pod in pods]
            scored, by_twin = (count_tokens(body, twin) if (body := task.result()) else None for task in tasks)
            _count(scored, by_twin, counts)
        finally:
            counts.open -= 1


def _count(canary: ScoredTokens | None, twin: ScoredTokens | None, counts: QualityCounts) -> None:
    """Adds one pair by what its servers scored. What the twin's server did not score is no pair of tokens."""
    if not twin or not twin.count:
        return
    if canary:
        counts.count_tokens(twin.count, canary.flips, twin.flips)
        counts.count_choices(len(twin.choices), twin.lost(canary))
    else:
        counts.unscored += bool(twin.choices)
