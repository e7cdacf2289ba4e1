"""Requests that were in flight when an engine died: after two deaths a request goes to no third endpoint (pure).

A death has one culprit and many bystanders. A request with a short body is tried at one other endpoint: it is on trial
there until the first byte of its response, and no other suspect is if that can be. When an engine dies during a trial,
other suspects in flight at that engine are not blamed once more. A request with a long body is not tried again: few are
so long, and each costs a server more than most before it can be refused.
"""

from collections import Counter
from collections.abc import Callable, Collection
from hashlib import blake2b

from slipway_process.fair_memory import FairMemory

# What a request is blamed for a death, and from which sum on it is poison: a long one from its first death on.
DEATH, POISON = 3, 6
LONG_BYTES = 64 << 10
# A stream that got so many events from one endpoint is past what may have ended the endpoint before.
PASSED_EVENTS = 4
REMEMBERED_S = 600.0
MAX_SUSPECTS = MAX_ANSWERED = 4096
# All requests at an endpoint see the death of its engine within this time, and before it no other engine is up there.
_SAME_DEATH_S = 2.0

Key = tuple[str, str, int]


class Suspect:
    """A request, identified by its client, its path and the bytes of its body."""

    __slots__ = ("_name", "body", "client", "path")

    def __init__(self, client: str, path: str, body: bytes) -> None:
        self.client, self.path, self.body = client, path, body
        self._name: bytes | None = None

    @property
    def is_long(self) -> bool:
        return len(self.body) >= LONG_BYTES

    @property
    def key(self) -> Key:
        """Identifies most requests without hashing the body: by client, path and length."""
        return self.client, self.path, len(self.body)

    @property
    def digest(self) -> bytes:
        if self._name is None:
            digest_of = blake2b(f"{self.client}\0{self.path}\0".encode("utf-8", "surrogatepass"), digest_size=16)
            digest_of.update(self.body)
            self._name = digest_of.digest()
        return self._name


class Suspects:
    """Counts deaths by request, for REMEMBERED_S and MAX_SUSPECTS requests. `clock` counts seconds.

    It also knows MAX_ANSWERED short requests that were answered. Of each, the client with most loses its oldest. Bytes
    that are sent often are in flight at most deaths; what was answered before is no suspect at the next one.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._crashes: dict[bytes, tuple[int, float, Key]] = {}
        # By client: when the same bytes were last blamed for an endpoint's death.
        self._died_s: FairMemory[str, tuple[bytes, str], float] = FairMemory(MAX_SUSPECTS)
        self._keys: Counter[Key] = Counter()
        self._trials: Counter[str] = Counter()
        self._blamed_s: dict[str, float] = {}
        self._shares: FairMemory[str, bytes, None] = FairMemory(MAX_SUSPECTS)  # by client: digests of its requests
        self._answered: FairMemory[str, int, bool] = FairMemory(MAX_ANSWERED)  # by client
        # The fast lane: whether it answered the same bytes, and what gets the keys of requests that are blamed.
        self.answered_in_lane: Callable[[str, str, bytes], bool] = lambda client, path, body: False
        self.on_change: Callable[[Collection[Key]], None] = lambda keys: None

    def answered(self, one: Suspect) -> bool:
        """Whether the same bytes, of the same client, were answered before. Not known of long ones."""
        if one.is_long:
            return False
        return bool(self._answered.get(one.client, _name(one))) or self.answered_in_lane(one.client, one.path, one.body)

    def blamed(self, one: Suspect) -> int:
        """The sum of weights of the deaths that a request was in flight at; it is poison from `POISON` on."""
        self.forget()
        # The body is hashed only if client, path and length are those of a suspect.
        if one.key not in self._keys:
            return 0
        return self._crashes.get(one.digest, (0, 0.0, one.key))[0]

    def blame(
        self,
        one: Suspect,
        url: str,
        weight: int,
        *,
        on_trial: bool = False,
        sent_s: float | None = None,
        reported: bool = False,
    ) -> int:
        """The engine at `url` died with a request in flight: blames the request, and returns its sum of weights.

        `weight`: DEATH, or POISON if one death is enough. `on_trial`: it was on trial there. `sent_s`: when it was sent
        there; None: now. `reported`: the server itself reported the death, and so is up. A server whose connections
        break, also those of requests that are sent next, is not up again within _SAME_DEATH_S. The time of sending
        counts: a busy gateway may see the end of a connection much later.
        """
        before, now_s = self.blamed(one), self._clock()
        self._blamed_s = {name: at for name, at in self._blamed_s.items() if now_s - at <= _SAME_DEATH_S}
        died_s = self._died_s.get(one.client, (one.digest, url))
        if died_s is not None:
            up_s = died_s if reported else died_s + _SAME_DEATH_S
            if (now_s if sent_s is None else sent_s) <= up_s:
                return before  # the same bytes were there twice: it is one death
        if on_trial:
            self._blamed_s[url] = now_s
        elif before and (self._trials[url] or url in self._blamed_s):
            return before
        self._died_s.put(one.client, (one.digest, url), now_s)
        self._note(one, before + weight, now_s)
        return before + weight

    def completed(self, one: Suspect) -> None:
        """A response to a request was sent to its end: takes 1 from the request's sum of weights.

        A request that crashes engines seldom completes, so its sum still rises.
        """
        if not one.is_long:
            self._answered.put(one.client, _name(one), True)
        if one.key not in self._keys or (found := self._crashes.get(one.digest)) is None:
            return
        count, at_s, key = found
        if count > 1:
            self._crashes[one.digest] = (count - 1, at_s, key)
        else:
            self._drop(one.digest)

    def __bool__(self) -> bool:
        """Whether any request is blamed."""
        return bool(self._crashes)

    def busy(self) -> Collection[str]:
        """Endpoints at which a suspect is on trial."""
        return self._trials.keys()

    def begin(self, url: str) -> None:
        self._trials[url] += 1

    def end(self, url: str) -> None:
        self._trials[url] -= 1
        if not self._trials[url]:
            del self._trials[url]

    def _note(self, one: Suspect, count: int, now_s: float) -> None:
        self._drop(one.digest)
        self._crashes[one.digest] = (count, now_s, one.key)
        self._keys[one.key] += 1
        for former, _ in self._shares.put(one.client, one.digest, None):
            self._drop(former)
        self.on_change(self._keys)

    def forget(self) -> None:
        """Forgets those that were blamed too long ago."""
        oldest_s = self._clock() - REMEMBERED_S
        while self._crashes:
            digest, (_, at_s, _) = next(iter(self._crashes.items()))
            if at_s > oldest_s:
                return
            self._drop(digest)

    def _drop(self, digest: bytes) -> None:
        if found := self._crashes.pop(digest, None):
            self._shares.pop(found[2][0], digest)
            self._keys[found[2]] -= 1
            if not self._keys[found[2]]:
                del self._keys[found[2]]
                self.on_change(self._keys)


def _name(one: Suspect) -> int:
    """Every response needs it: Python keeps the hash of a body, which is keyed, so that no client can choose it."""
    return hash((one.client, one.path, one.body))
