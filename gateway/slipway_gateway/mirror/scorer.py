"""Sends some pairs to a scorer: decides which ones and how many at once, and counts the result of each.

Contents are in memory while a call lasts, and in the call. They are in no log, metric, status or file, and neither is
anything of a response but its numbers.
"""

import secrets
from collections.abc import Callable

from slipway_contracts.counters import ScoreCounts
from slipway_contracts.twin_shadow import TwinScorer, TwinShadow

from ..routing.mirroring import is_compared
from ..routing.table import Route
from ..scorers import ballot
from ..scorers.ballot import Prompt
from ..scorers.client import CallFailure, ScorerClient
from ..upstream.exchange import UpstreamRequest
from .room import MirrorMemory, MirrorPlaces
from .shadow_request import ShadowRequest
from .transcript import ChoiceTexts

# Results of pairs that were chosen; each pair has exactly one.
SCORED, EQUAL, DROPPED, CANCELLED = "scored", "equal", "dropped", "cancelled"
BLOCKED, UNANSWERED, INVALID = CallFailure.BLOCKED, CallFailure.UNANSWERED, CallFailure.INVALID


class PairScorer:
    """`most`: calls at the same time. Beyond them, and while clients need the capacity, a pair is not scored."""

    def __init__(self, client: ScorerClient, most: int, memory: MirrorMemory, busy: Callable[[str], bool]) -> None:
        self._client = client
        self._most = most
        self._memory = memory
        self._busy = busy
        self._places = MirrorPlaces(most)

    async def close(self) -> None:
        await self._client.close()

    def chooses(self, route: Route, shadow: TwinShadow, original: UpstreamRequest) -> bool:
        """Whether this pair is to be scored; decided by chance, before its responses are known."""
        rule = shadow.scorer
        if rule is None or not (self._most and original.scorable and original.writes_text):
            return False
        return is_compared(route, secrets.token_hex(8), rule.percentage)

    async def score(
        self,
        route: str,
        model: str,
        rule: TwinScorer,
        copy: ShadowRequest,
        answers: tuple[ChoiceTexts | None, ChoiceTexts | None],
        counts: ScoreCounts,
    ) -> str:
        """Scores a chosen pair whose legs both ended well, and counts it. Returns its result; empty: nothing to rate.

        `answers`: of canary and of its twin; None where a response has no text.
        """
        prompt = ballot.prompt_of(copy.path, copy.body)
        if prompt is None or answers == (None, None):
            return ""
        canary, twin = (_text(texts) for texts in answers)
        if canary is None or twin is None:
            # It counts as invalid: a canary must not pass by the part of its responses that can be read.
            counts.invalid += 1
            return INVALID
        if canary == twin:
            counts.count(0)
            return EQUAL
        if not self._client.may_call(rule.url):
            counts.blocked += 1
            return BLOCKED
        if self._busy(route) or not self._places.take(route):
            counts.dropped += 1
            return DROPPED
        try:
            return await self._call(route, model, rule, prompt, (canary, twin), counts)
        finally:
            self._places.leave(route)

    async def _call(
        self, route: str, model: str, rule: TwinScorer, prompt: Prompt, answers: tuple[str, str], counts: ScoreCounts
    ) -> str:
        swapped = bool(secrets.randbits(1))
        shown = (answers[1], answers[0]) if swapped else answers
        body = ballot.write(secrets.token_hex(16), model, prompt, shown)
        if body is None:
            return ""
        counts.open += 1
        self._memory.force(route, len(body))
        try:
            response = await self._client.call(rule.url, body, rule.timeout_seconds)
        finally:
            counts.open -= 1
            self._memory.shrink(route, len(body))
        if isinstance(response, CallFailure):
            return _count_failure(response, counts)
        found = ballot.read(response, swapped=swapped, margin=rule.margin_thousandths / 1000)
        if found is None:
            return _count_failure(INVALID, counts)
        counts.count(found.lower, found.scores)
        return SCORED


def _text(texts: ChoiceTexts | None) -> str | None:
    """The one text of a response; None where it has none, several, or a long one."""
    if texts is None or len(texts) != 1:
        return None
    try:
        size_bytes = len(texts[0].encode())
    except UnicodeEncodeError:  # a lone surrogate is no text that JSON can carry
        return None
    return texts[0] if size_bytes <= ballot.MAX_TEXT_BYTES else None


def _count_failure(failure: CallFailure, counts: ScoreCounts) -> str:
    if failure is BLOCKED:
        counts.blocked += 1
    elif failure is UNANSWERED:
        counts.unanswered += 1
    else:
        counts.invalid += 1
    return failure
