"""Tokens of service accounts: the API server reviews them at a bounded rate, and its results are cached."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from slipway_process.places import Places
from slipway_process.supervisor import observe

from ..identity.reviewed_tokens import Reviewed, ReviewedTokens, digest
from ..identity.tokens import UnverifiedToken
from ..limits.rate import RateLimit
from ..telemetry.metrics import GatewayMetrics

log = logging.getLogger(__name__)

# TokenReviews that one gateway may send in a second. Half of a burst is kept for tokens that were accepted before, and
# the new tokens of one source get at most half of the rate. Those in flight have a share for each source too.
REVIEWS_PER_S = 20
MAX_IN_FLIGHT = 64
RETRY_S = 1.0  # between two tries while the API server does not review
MAX_SOURCES = 4096
Review = Callable[[str], Awaitable[str]]


class ReviewUnavailable(Exception):
    """It is not known whether a token is valid: the API server does not answer, or the rate of reviews is used up."""


class ServiceAccountTokens:
    """User names of tokens, cached.

    `review` returns the user name of a token, "" when the token is not valid for `audience`; it raises
    ReviewUnavailable.
    """

    def __init__(self, review: Review, audience: str, metrics: GatewayMetrics, clock: Callable[[], float]) -> None:
        self.audience = audience
        self.trouble = ""  # why the last review failed; empty when it did not
        self._review, self._metrics, self._clock = review, metrics, clock
        self._known = ReviewedTokens()
        self._pending: dict[bytes, asyncio.Task[Reviewed | None]] = {}
        self._places = Places(MAX_IN_FLIGHT)
        self._rate = RateLimit(clock(), REVIEWS_PER_S)
        self._sources: OrderedDict[str, RateLimit] = OrderedDict()
        self._tried_s = float("-inf")

    async def username(self, token: UnverifiedToken, source: str) -> str:
        """The user name of a token that has not expired; "" when the API server refuses the token.

        `source`: the client's address, whose reviews of new tokens are limited.

        Raises:
            ReviewUnavailable: the token cannot be reviewed now, and has no cached result that may still be used.
        """
        key, now_s = digest(token.text), self._clock()
        known = self._known.find(key)
        if known is not None and known.fresh(now_s):
            return known.username
        usable = known if known is not None and known.usable(now_s) else None
        pending = self._pending.get(key) or self._begin(key, token.text, "" if usable else source)
        if usable is not None and (pending is None or self.trouble):
            return usable.username  # while the API server is away no client waits for it
        # The review is a task of its own: when this client leaves, other requests with the token still get its result.
        found = await asyncio.shield(pending) if pending is not None else None
        found = found or usable
        if found is None:
            raise ReviewUnavailable(self.trouble or "too many tokens are reviewed now")
        return found.username

    async def close(self) -> None:
        tasks = list(self._pending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, key: bytes, token: str, source: str) -> "asyncio.Task[Reviewed | None] | None":
        """Starts a review; None: the API server may not be called now. `source` "": the token was accepted before."""
        now_s = self._clock()
        if self.trouble and now_s - self._tried_s < RETRY_S:
            return None
        owners = (source,) if source else ()
        if self._places.refusal(*owners) or not self._may_call(source, now_s):
            self._metrics.token_reviewed("limited")
            return None
        self._tried_s = now_s
        self._places.force(*owners)
        task = self._pending[key] = observe(asyncio.create_task(self._call(key, token), name="review of a token"))
        # A task that is cancelled before it began runs none of its code: so the place is given back here.
        task.add_done_callback(lambda _: self._places.leave(*owners))
        return task

    def _may_call(self, source: str, now_s: float) -> bool:
        if source:
            own = self._sources.pop(source, None) or RateLimit(now_s, REVIEWS_PER_S // 2)
            self._sources[source] = own
            if len(self._sources) > MAX_SOURCES:
                self._sources.popitem(last=False)
            if not own.take(now_s, REVIEWS_PER_S // 2):
                return False
        return self._rate.take(now_s, REVIEWS_PER_S, spare=bool(source))

    async def _call(self, key: bytes, token: str) -> Reviewed | None:
        """Has a token reviewed and caches the result; None: the review failed."""
        try:
            name = await self._review(token)
        except ReviewUnavailable as error:
            self._metrics.token_reviewed("failed")
            if not self.trouble:
                log.error("tokens of service accounts are not reviewed, those accepted lately stay: %s", error)
            self.trouble = str(error)
            return None
        finally:
            self._pending.pop(key, None)
        if self.trouble:
            log.info("tokens of service accounts are reviewed again")
        self.trouble = ""
        self._metrics.token_reviewed("accepted" if name else "refused")
        found = Reviewed(name, self._clock())
        self._known.put(key, found)
        return found
