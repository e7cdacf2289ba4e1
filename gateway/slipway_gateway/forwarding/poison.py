"""Requests that were in flight when an engine died: after two crashes a request goes to no third endpoint (pure).

A crash has one culprit and many bystanders, and all of them are tried elsewhere. So a suspect is on trial at its next
endpoint until the first byte of its response, alone where that can be: when an engine dies while a suspect is on trial
there, the others in flight at it are not blamed once more.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection
from hashlib import blake2b

# A server that reports an engine crash, and a connection that was reset: a pod that is killed
# from outside looks like that too, and whoever was in flight there has done nothing. Two of the first kind make a
# request poison, or three of the second.
CRASHED, RESET, POISON = 3, 2, 6
REMEMBERED_S = 600.0
MAX_SUSPECTS = 4096
# What one death does to all requests at an endpoint comes within this time.
_SAME_DEATH_S = 2.0

Key = tuple[str, str, int]


class Suspect:
    """One request by its bytes, of one client at one path."""

    __slots__ = ("_name", "body", "client", "path")

    def __init__(self, client: str, path: str, body: bytes) -> None:
        self.client, self.path, self.body = client, path, body
        self._name: bytes | None = None

    @property
    def key(self) -> Key:
        """Distinguishes requests without reading the body."""
        return self.client, self.path, len(self.body)

    @property
    def digest(self) -> bytes:
        if self._name is None:
            digest_of = blake2b(f"{self.client}\0{self.path}\0".encode("utf-8", "surrogatepass"), digest_size=16)
            digest_of.update(self.body)
            self._name = digest_of.digest()
        return self._name


class Suspects:
    """Counts crashes by request for a while, of the last ones. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._crashes: dict[bytes, tuple[int, float, Key]] = {}
        self._died_s: dict[tuple[bytes, str], float] = {}  # when the same bytes were blamed for an endpoint's death
        self._keys: Counter[Key] = Counter()
        self._trials: Counter[str] = Counter()
        self._blamed_s: dict[str, float] = {}

    def blamed(self, one: Suspect) -> int:
        """For the engines that died with it in flight: `POISON` or more is enough."""
        self._forget()
        # The body is hashed only if client, path and length are those of a suspect.
        if one.key not in self._keys:
            return 0
        return self._crashes.get(one.digest, (0, 0.0, one.key))[0]

    def blame(self, one: Suspect, url: str, weight: int, *, sent_s: float, on_trial: bool) -> int:
        """The engine at `url` died with it in flight: all that it is blamed for now.

        `weight`: CRASHED or RESET. `sent_s`: when it was sent there.
        """
        before, now_s = self.blamed(one), self._clock()
        self._blamed_s = {name: at for name, at in self._blamed_s.items() if now_s - at <= _SAME_DEATH_S}
        self._died_s = {name: at for name, at in self._died_s.items() if now_s - at <= _SAME_DEATH_S}
        if sent_s <= self._died_s.get((one.digest, url), -math.inf):  # the same bytes were there twice: it is one death
            return before
        if on_trial:
            self._blamed_s[url] = now_s
        elif before and (self._trials[url] or url in self._blamed_s):
            return before
        self._died_s[one.digest, url] = now_s
        self._note(one, before + weight, now_s)
        return before + weight

    def completed(self, one: Suspect) -> None:
        """A response to it has been sent to its end: each one takes 1 from what it is blamed for.

        Bytes that many requests send are in flight at most deaths, whatever the cause. What crashes an engine seldom
        completes, so its count still rises.
        """
        if one.key not in self._keys or (found := self._crashes.get(one.digest)) is None:
            return
        count, at_s, key = found
        if count > 1:
            self._crashes[one.digest] = (count - 1, at_s, key)
        else:
            self._drop(one.digest)

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
        if len(self._crashes) > MAX_SUSPECTS:
            self._drop(next(iter(self._crashes)))

    def _forget(self) -> None:
        oldest_s = self._clock() - REMEMBERED_S
        while self._crashes:
            digest, (_, at_s, _) = next(iter(self._crashes.items()))
            if at_s > oldest_s:
                return
            self._drop(digest)

    def _drop(self, digest: bytes) -> None:
        if found := self._crashes.pop(digest, None):
            self._keys[found[2]] -= 1
            if not self._keys[found[2]]:
                del self._keys[found[2]]
