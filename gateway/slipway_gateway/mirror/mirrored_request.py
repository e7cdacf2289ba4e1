"""One request to mirror, with the part of stable's response that is kept for a comparison."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipway_contracts.route_table import MirrorRoute

from ..judging.samples import GenerationSamples
from ..routing.router import RouteEndpoint
from ..upstream.exchange import UpstreamRequest
from ..wire.predictions import MAX_BYTES, Predictions, read_predictions
from .transcript import ChoiceTexts, Transcript

# Some 1,300 tokens of a chat's stream; a longer answer is mirrored and not compared.
MAX_KEPT_BYTES = 256 << 10
# Parsed in one go, in a fifth of a millisecond; then other tasks of the event loop get their turn.
_SLICE_BYTES = 8 << 10


@dataclass(slots=True)
class MirroredRequest:
    """A client's request that `endpoint` serves; `epoch`: samples of the generation in which it counts.

    `compared`: whether stable's response is kept, to be compared. `headers`: of that response. `passing`: whether it
    has a place among the responses that are kept while they pass.
    """

    outgoing: UpstreamRequest
    request_id: str
    endpoint: RouteEndpoint
    mirror: MirrorRoute
    epoch: GenerationSamples
    streamed: bool
    compared: bool
    headers: Mapping[str, str]
    passing: bool = False
    _kept: list[bytes] = field(default_factory=list)
    _kept_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the request's body and of the kept response."""
        return len(self.outgoing.body) + self._kept_bytes

    def add_part(self, part: bytes) -> None:
        """Keeps a part of stable's response, if it is to be compared. Runs for every token, so it parses nothing."""
        if not self.compared:
            return
        self._kept.append(part)
        self._kept_bytes += len(part)
        if self._kept_bytes > MAX_KEPT_BYTES:
            self._kept, self._kept_bytes, self.compared = [], 0, False

    def predictions(self) -> Predictions | None:
        """What stable predicted; None where that cannot be read or is longer than `MAX_BYTES / 2`.

        Half the limit leaves room for canary's response, which may be somewhat longer for the same rows.
        """
        if self._kept_bytes > MAX_BYTES // 2:
            return None
        return read_predictions(self.outgoing.path, self.headers, b"".join(self._kept))

    async def texts(self) -> ChoiceTexts | None:
        """The texts of stable's response; None when it has no text to compare."""
        transcript = Transcript(streamed=self.streamed)
        await read(transcript, b"".join(self._kept))
        return transcript.texts()


async def read(transcript: Transcript, part: bytes) -> None:
    """Feeds `part` of a response to `transcript` in slices; other tasks of the event loop run between them."""
    for begin in range(0, len(part), _SLICE_BYTES):
        if begin:
            await asyncio.sleep(0)
        transcript.feed(part[begin : begin + _SLICE_BYTES])
