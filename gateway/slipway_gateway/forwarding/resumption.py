"""The rest of a broken stream: from another server now, or for a client that comes back later."""

from collections.abc import Callable
from dataclasses import replace

import aiohttp

from ..settings import Settings
from ..telemetry.metrics import Metrics, Record
from ..upstream.exchange import Answer, Call
from ..wire import errors
from ..wire.resume import Trail
from .resume_memory import Memory, name_of
from .retries import Retries
from .retry_state import Effort


class Resumption:
    """Of all streams of one gateway."""

    def __init__(
        self, settings: Settings, retries: Retries, memory: Memory, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._retries = retries
        self._memory = memory
        self._metrics = metrics
        self._clock = clock

    def new_effort(self) -> Effort:
        """For all resumes of one stream: what kills each server that it comes to must come to few."""
        return Effort(0.0, self._settings.max_resumes + 1, resumes=True)

    async def resume(self, call: Call, trail: Trail, broken: Answer, record: Record, effort: Effort) -> Answer | None:
        """The rest of a broken stream from another server of its revision; None when none gives it in time."""
        target = broken.target
        headers, tokens = trail.ask(call.headers, call.tokens)
        effort.again(target.url, self._clock() + self._settings.resume_timeout_s)
        try:
            rest = replace(call, headers=headers, tokens=tokens, revision=target.revision)
            answer = await self._retries.first_answer(rest, record, effort)
        except (errors.Refusal, aiohttp.ServerTimeoutError) as ended:
            if isinstance(ended, errors.Refusal) and ended.outcome == errors.POISON:
                raise
            answer = broken
        if answer is not broken and (answer.status != 200 or not trail.goes_on(answer.headers)):
            answer.close()
            answer = broken
        self._metrics.resumed(target.model, target.revision, "lost" if answer is broken else "resumed")
        return None if answer is broken else answer

    def remember(self, call: Call, trail: Trail) -> None:
        """Of a stream that did not come to its end here."""
        if tokens := trail.tokens:
            self._memory.keep(name_of(trail.stream, call), tokens)

    def remembered(self, call: Call, stream: str) -> bytes:
        """Tokens of a stream that broke here, with commas; empty when it did not, or too long ago."""
        tokens = self._memory.find(name_of(stream, call))
        self._metrics.returned(known=bool(tokens))
        return tokens
