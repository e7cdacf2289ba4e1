"""API keys of providers: read when they are needed, kept for a while, and shown nowhere."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from slipway_process.fair_memory import FairMemory

KEPT_S, FAILURE_KEPT_S = 60.0, 5.0
PROBLEM_SHOWN_S = 600.0  # after the last attempt: without one nothing shows that the Secret was mended
MOST_KEYS = 1024

SecretName = tuple[str, str, str]  # namespace, name and key of a Secret


class KeyUnavailable(Exception):
    """Why a provider's key cannot be read. The message names Secret and key, and no value."""


ReadKey = Callable[[str, str, str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class _Kept:
    until_s: float
    key: str = field(default="", repr=False)
    problem: str = ""


class ProviderKeys:
    """Keys by namespace, Secret and key. `read`: reads one, raises KeyUnavailable. `clock` counts seconds."""

    def __init__(self, read: ReadKey, clock: Callable[[], float]) -> None:
        self._read, self._clock = read, clock
        self._kept: FairMemory[str, SecretName, _Kept] = FairMemory(MOST_KEYS)

    async def read(self, namespace: str, secret: str, key: str) -> str:
        """The key; a change of its Secret counts within KEPT_S.

        Raises:
            KeyUnavailable: it cannot be read.
        """
        name, now_s = (namespace, secret, key), self._clock()
        kept = self._kept.get(namespace, name)
        if kept is None or kept.until_s <= now_s:
            try:
                kept = _Kept(now_s + KEPT_S, await self._read(namespace, secret, key))
            except KeyUnavailable as error:
                kept = _Kept(now_s + FAILURE_KEPT_S, problem=str(error))
            self._kept.put(namespace, name, kept)
        if kept.problem:
            raise KeyUnavailable(kept.problem)
        return kept.key

    def problem(self, namespace: str, secret: str, key: str) -> str:
        """Why the last attempt to read the key failed; "": it did not, or was long ago."""
        kept = self._kept.get(namespace, (namespace, secret, key))
        is_recent = kept is not None and self._clock() < kept.until_s + PROBLEM_SHOWN_S
        return kept.problem if kept and is_recent else ""
