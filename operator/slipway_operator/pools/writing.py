"""How often what pods of a ModelPool report is written: it may differ in each look, and each write is load."""

from collections.abc import Hashable, Mapping

from slipway_operator.api.objects import ObjectKey
from slipway_operator.api.pools.model_pool import ModelPoolStatus

USE_EACH_S = 30.0  # between two writes of a status where only memory changed
# Reasons of a pod can alternate for ever. So some changes are shown at once, and one more after each NEWS_EACH_S.
MOST_NEWS, NEWS_EACH_S = 10, 20.0


class NewsRate:
    """Of one object. Times in seconds of one clock."""

    def __init__(self) -> None:
        self._empty_s = float("-inf")  # when as many as MOST_NEWS are possible at once again

    def is_due(self, now_s: float) -> bool:
        """Whether there is room for one more."""
        return self._empty_s - now_s <= (MOST_NEWS - 1) * NEWS_EACH_S

    def note(self, now_s: float) -> None:
        """Count one."""
        self._empty_s = max(self._empty_s, now_s) + NEWS_EACH_S


class WriteRate:
    """Of the status of one pool."""

    def __init__(self) -> None:
        self._written_s = float("-inf")
        self._news = NewsRate()

    def is_due(self, former: ModelPoolStatus, fresh: ModelPoolStatus, now_s: float) -> bool:
        """Whether a status that differs is written now: at once for another generation, which a user made."""
        if fresh.observed_generation != former.observed_generation:
            return True
        if _news(fresh) == _news(former):
            return now_s - self._written_s >= USE_EACH_S
        return self._news.is_due(now_s)

    def wrote(self, now_s: float) -> None:
        """Note a write."""
        self._written_s = now_s
        self._news.note(now_s)


class MemberNews:
    """For which ModelDeployments something about their pools changed: facts at once, reasons at a bounded rate."""

    def __init__(self) -> None:
        self._facts: dict[ObjectKey, set[Hashable]] = {}  # what members were reconciled for last
        self._texts: dict[ObjectKey, set[Hashable]] = {}
        self._rates: dict[ObjectKey, NewsRate] = {}

    def changed(
        self, facts: Mapping[ObjectKey, set[Hashable]], texts: Mapping[ObjectKey, set[Hashable]], now_s: float
    ) -> list[ObjectKey]:
        """Return the members to reconcile, and keep what they are reconciled for."""
        self._rates = {key: self._rates.get(key) or NewsRate() for key in facts}
        found, shown = [], {}
        for key in sorted(facts):
            is_new = self._facts.get(key) != facts[key]
            text, former = texts.get(key, set()), self._texts.get(key, set())
            if is_new or (text != former and self._rates[key].is_due(now_s)):
                found.append(key)
                self._rates[key].note(now_s)
                former = text
            shown[key] = former
        self._facts, self._texts = dict(facts), shown
        return found


def _news(status: ModelPoolStatus) -> Hashable:
    entries = tuple((one.model, one.revision, one.stable, one.reason) for one in status.entries)
    return status.conditions, status.ready, status.models, status.loaded, entries
