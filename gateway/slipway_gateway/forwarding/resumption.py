"""The rest of a broken stream: from another server now, or for a client that comes back later."""

from collections.abc import Callable

import aiohttp
from msgspec.structs import replace

from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from ..upstream.exchange import UpstreamRequest, UpstreamResponse
from ..wire import errors
from ..wire.resume import StreamProgress
from .resume_memory import ResumeMemory, stream_key
from .retries import Retries
from .retry_state import RetryState


class Resumption:
    """Resumes the broken streams of one gateway."""

    def __init__(
        self,
        settings: GatewaySettings,
        retries: Retries,
        memory: ResumeMemory,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._retries = retries
        self._memory = memory
        self._metrics = metrics
        self._clock = clock

    def new_state(self) -> RetryState:
        """Retry state for all resumes of one stream: it bounds the servers that a harmful request reaches."""
        return RetryState(0.0, self._settings.max_resumes + 1, resumes=True)

    async def resume(
        self,
        outgoing: UpstreamRequest,
        progress: StreamProgress,
        broken: UpstreamResponse,
        record: RequestRecord,
        state: RetryState,
    ) -> UpstreamResponse | None:
        """The rest of a broken stream from another server of its revision; None when none gives it in time.

        Raises:
            RequestError: the request is poison.
        """
        endpoint = broken.endpoint
        headers, tokens = progress.resume_request(outgoing.headers, outgoing.tokens)
        state.again(endpoint.url, self._clock() + self._settings.resume_timeout_s)
        record.trace.event("stream broken", url=endpoint.url, resumes=record.resumes)
        try:
            whose = {"revision": endpoint.revision, "base_revision": endpoint.base_revision}
            rest = replace(outgoing, headers=headers, tokens=tokens, **whose)
            response = await self._retries.first_response(rest, record, state)
        except (errors.RequestError, aiohttp.ServerTimeoutError) as ended:
            if isinstance(ended, errors.RequestError) and ended.outcome == errors.POISON:
                raise
            response = broken
        if response is not broken and (response.status != 200 or not progress.continues(response.headers)):
            response.close()
            response = broken
        record.resumes += response is not broken
        outcome = "lost" if response is broken else "resumed"
        self._metrics.resumed(endpoint.model, endpoint.revision, outcome)
        record.trace.event("resume", outcome=outcome)
        return None if response is broken else response

    def remember(self, outgoing: UpstreamRequest, progress: StreamProgress) -> None:
        """Keeps the tokens of a stream that broke here."""
        if tokens := progress.tokens:
            self._memory.keep(stream_key(progress.stream, outgoing), tokens, outgoing.client)

    def remembered(self, outgoing: UpstreamRequest, stream: str) -> bytes:
        """Tokens of a stream that broke here, with commas; empty when it did not, or too long ago."""
        tokens = self._memory.find(stream_key(stream, outgoing))
        self._metrics.returned(known=bool(tokens))
        return tokens
