"""Has the guards of a request look at both responses of its pair, as they would before a client got them.

A canary whose responses guards block or redact more often than its twin's is found by this before any client has one.
"""

import asyncio
from dataclasses import replace

from slipway_contracts.guards import OUTPUT
from slipway_contracts.twin_shadow import TwinShadow

from ..guards.checks import GuardChecks, of_stage
from ..guards.protocol import Subject
from ..guards.verdict import StageVerdict
from ..routing.guards import BoundGuard
from ..routing.table import namespace_of
from ..upstream.exchange import UpstreamRequest
from ..wire.responses import BLOCKED, REDACTED
from .leg import LegOutcome
from .transcript import ChoiceTexts

Legs = tuple[LegOutcome, LegOutcome]


class PairGuards:
    """Guards of the pairs of one gateway. Their calls have places of their own, by namespace."""

    def __init__(self, checks: GuardChecks) -> None:
        self._checks = checks

    async def looked_at(self, original: UpstreamRequest, shadow: TwinShadow, legs: Legs, model: str) -> Legs:
        """The legs of canary and of its twin with what guards did to their texts as failures.

        Without both texts, or where a guard failed on one of them, there is no such evidence about either.
        """
        guards, (canary, twin) = of_stage(original.guards, OUTPUT), legs
        if not guards or canary.texts is None or twin.texts is None:
            return legs
        sides = ((shadow.revision, canary.texts), (shadow.twin, twin.texts))
        found = await asyncio.gather(*(self._check(guards, original, model, *side) for side in sides))
        if any(verdict.failed for verdict in found):
            return legs
        return _marked(canary, found[0]), _marked(twin, found[1])

    async def _check(
        self, guards: tuple[BoundGuard, ...], original: UpstreamRequest, model: str, revision: str, texts: ChoiceTexts
    ) -> StageVerdict:
        subject = Subject(OUTPUT, model, revision, original.tenant)
        named = {f"choices[{index}]": text for index, text in enumerate(texts) if text}
        return await self._checks.check(guards, subject, named, f"pairs of {namespace_of(original.whose)}")


def _marked(leg: LegOutcome, verdict: StageVerdict) -> LegOutcome:
    kind = BLOCKED if verdict.blocked else REDACTED if verdict.spans else ""
    return replace(leg, outcome=leg.outcome.having(kind)) if kind else leg
