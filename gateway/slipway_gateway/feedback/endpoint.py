"""POST /v1/feedback: counts what clients learned about answers, each answer once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ..balancing.load_balancer import LoadBalancer
from ..identity.authenticate import RequestIdentity
from ..judging.samples import GenerationSamples
from ..routing.table import Route
from ..settings import GatewaySettings
from ..sharing.counters import CountersAway, SharedClaims
from ..telemetry.inference_log import InferenceLog, may_capture
from ..telemetry.metrics import GatewayMetrics
from ..wire.errors import invalid
from .entries import Entry, parse
from .memory import CLAIMED, RATED, WRONG, FeedbackMemory
from .tokens import FeedbackTokens, SignedAnswer, Statement, table_of

PATH = "/v1/feedback"
ACCEPTED, DUPLICATE, EXPIRED, UNKNOWN, NO_LABEL = "accepted", "duplicate", "expired", "unknown", "no_label"
NO_OUTCOME = "no_outcome"  # it has a name that no experiment of the response counts
_COUNTED_AS = {True: "wrong", False: "correct", None: NO_LABEL}  # by whether the answer was wrong


class Outcomes(Protocol):
    """Where values of outcomes count for the arms of experiments."""

    def counts(self, states: Statement, outcome: str) -> bool:
        """Whether an experiment counts this outcome for the response of a token."""

    async def rate(self, states: Statement, outcome: str, value: float, owner: str) -> None:
        """Counts a value from 0 to 1, where it is the first one of its unit. `owner`: whose shares it takes."""


@dataclass(frozen=True, slots=True)
class _Rating:
    """An entry that counts unless its token was counted before.

    `place`: its index in the request. `owner`: whose shares it takes. `generation` None: no analysis compares it.
    `watched`: the route, where spec.accuracy counts it. `wrong` None: it is a label that cannot be compared, and is for
    the inference log alone. `outcome`: for which an experiment counts it; empty: none does. `name`: as in the entry.
    """

    place: int
    states: Statement
    generation: GenerationSamples | None
    watched: Route | None
    wrong: bool | None
    logged: bool
    owner: str
    outcome: str = ""
    name: str = ""

    @property
    def id(self) -> bytes:
        """What counts once: a token, and beside it each name of an outcome."""
        return self.states.id + self.name.encode("utf-8", "surrogatepass")


class FeedbackApi:
    """Counts feedback that comes to one gateway. `shared` None: a token counts once at each gateway."""

    def __init__(
        self,
        settings: GatewaySettings,
        balancer: LoadBalancer,
        metrics: GatewayMetrics,
        tokens: FeedbackTokens,
        inference_log: InferenceLog,
        *,
        shared: SharedClaims | None = None,
        outcomes: Outcomes | None = None,
    ) -> None:
        self._outcomes = outcomes
        self._max_age_s, self._tokens = settings.feedback_max_age_s, tokens
        self._balancer, self._metrics = balancer, metrics
        self._memory = FeedbackMemory()
        self.shared, self._inference_log = shared, inference_log

    async def rate(self, body: bytes, sender: RequestIdentity | None) -> bytes:
        """Counts the entries of a request body; returns the body of the response.

        Raises:
            RequestError: the body is invalid (400), or it is a single entry whose token is unknown (404).
        """
        entries, listed = parse(body)
        results = await self._rate(entries, sender)
        if not listed and results[0] == UNKNOWN:
            message = "No response to you has this id: send the header X-Slipway-Feedback of a response as it came."
            raise invalid("feedback_not_found", message, status=404, param="id")
        if not listed:
            return msgspec.json.encode({"object": "feedback", "status": results[0]})
        data = [{"index": place, "status": result} for place, result in enumerate(results)]
        return msgspec.json.encode({"object": "list", "data": data, ACCEPTED: results.count(ACCEPTED)})

    async def _rate(self, entries: Sequence[Entry], sender: RequestIdentity | None) -> list[str]:
        tenant = sender.name if sender else ""
        results, ratings = [UNKNOWN] * len(entries), []
        for place, entry in enumerate(entries):
            answer = self._tokens.read(entry.id, tenant)
            if answer is None:
                self._metrics.rated("unknown", "", UNKNOWN)
                continue
            found = self._found(place, entry, answer, sender)
            if isinstance(found, _Rating):
                results[place] = ACCEPTED
                ratings.append(found)
            else:
                results[place] = found
                self._count(answer.states, found)
        for rating, is_new in zip(ratings, await self._claim(ratings), strict=True):
            results[rating.place] = ACCEPTED if is_new else DUPLICATE
            self._count(rating.states, _COUNTED_AS[rating.wrong] if is_new else DUPLICATE)
            if is_new:
                self._add(rating, entries[rating.place])
        for rating in ratings:
            value = entries[rating.place].value(rating.wrong)
            if self._outcomes and rating.outcome and value is not None and results[rating.place] == ACCEPTED:
                await self._outcomes.rate(rating.states, rating.outcome, value, rating.owner)
        return results

    def _found(self, place: int, entry: Entry, answer: SignedAnswer, sender: RequestIdentity | None) -> _Rating | str:
        states, wrong = answer.states, entry.is_wrong(answer)
        watched, generation, logged, outcome = None, None, False, ""
        is_valid = not self._tokens.is_expired(states, self._max_age_s)
        if is_valid and self._outcomes and self._outcomes.counts(states, entry.outcome):
            outcome = entry.outcome
        if not entry.name:  # others are for experiments alone
            watched = self._watched(states)
            if is_valid:
                generation, logged = self._generation(states), self._is_logged(states, sender)
        if watched is None and generation is None and not logged and not outcome:
            return NO_OUTCOME if entry.name and is_valid else EXPIRED
        if wrong is None and not logged:
            return NO_LABEL
        owner = sender.name if sender else states.route  # a token has one of them
        rating = _Rating(place, states, generation, watched, wrong, logged, owner, outcome, entry.name)
        return rating if self._memory.first(owner, rating.id, CLAIMED) else DUPLICATE

    def _watched(self, states: Statement) -> Route | None:
        """The route of the response, where spec.accuracy counts labels of this age."""
        route = self._route(states)
        counting = route.accuracy if route else None
        if counting is None or not counting.feedback:
            return None
        return None if self._tokens.is_expired(states, counting.max_age_seconds or self._max_age_s) else route

    def _route(self, states: Statement) -> Route | None:
        table = self._balancer.published.current
        return table.routes.get(states.route) if table else None

    def _generation(self, states: Statement) -> GenerationSamples | None:
        """The samples in which the answer counts; None where its generation is not reported, or has other weights."""
        route = self._route(states)
        found = self._balancer.first_attempts.samples.generation(route, states.generation) if route else None
        known = found is not None and bool(found.digest) and table_of(found.digest) == states.table
        return found if known else None

    async def _claim(self, ratings: Sequence[_Rating]) -> list[bool]:
        ids = [one.id for one in ratings]
        if self.shared is None or not ids:
            return [True] * len(ids)
        try:
            return await self.shared.claim(ids, max(map(self._longest_age_s, ratings)))
        except CountersAway:
            return [True] * len(ids)  # once at this gateway
        except BaseException:
            for one in ratings:
                self._memory.forget(one.owner, one.id)  # the client is gone and may send it again
            raise

    def _longest_age_s(self, rating: _Rating) -> float:
        """How long the token of a rating is valid, and so has to be remembered."""
        counting = rating.watched.accuracy if rating.watched else None
        return max(self._max_age_s, (counting.max_age_seconds or 0) if counting else 0)

    def _is_logged(self, states: Statement, sender: RequestIdentity | None) -> bool:
        """Whether it belongs into the inference log: owner and tenant want that, as for the request itself."""
        route = self._route(states)
        wanted = route is not None and route.inference_log is not None
        return wanted and self._inference_log.is_on and may_capture(sender)

    def _add(self, rating: _Rating, entry: Entry) -> None:
        """Adds a rating to the inference log, the counts for spec.accuracy and the samples.

        As in all counts of the judge, a session counts once there, and once as wrong.
        """
        states, session = rating.states, rating.states.table + rating.states.session
        if rating.logged:
            self._inference_log.rated(rating.owner, states.id.hex(), entry.correct, entry.score, entry.label)
        if rating.wrong is None or not states.counts:
            return
        if rating.watched:
            person = states.session if states.personal else b""
            self._balancer.accuracy.rated(
                rating.watched, states.revision, states.client, person, states.issued_s, wrong=rating.wrong
            )
        if rating.generation is None:
            return
        first = not states.session or self._memory.first(states.route, session, RATED)
        wrong = rating.wrong and (not states.session or self._memory.first(states.route, session, WRONG))
        rating.generation.rate(states.revision, first=first, wrong=wrong)

    def _count(self, states: Statement, result: str) -> None:
        table = self._balancer.published.current
        route = table.routes.get(states.route) if table else None
        model = table.id_of(route) if table and route else "unknown"
        self._metrics.rated(model, states.revision if route else "", result)
