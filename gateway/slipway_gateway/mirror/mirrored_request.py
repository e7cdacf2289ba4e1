"""One request that is to be mirrored, and what stable answered as far as it is kept for a comparison."""

import asyncio
from dataclasses import dataclass, field

from ..judging.samples import Epoch
from ..routing.router import Target
from ..routing.table import MirrorRoute
from ..upstream.exchange import Call
from .transcript import Said, Transcript

# Some 1,300 tokens of a chat's stream; a longer answer is mirrored and not compared.
MAX_KEPT_BYTES = 256 << 10
# Read in one go, a fifth of a millisecond; then other requests get their turn.
_SLICE_BYTES = 8 << 10


@dataclass(slots=True)
class Copy:
    """Of a request that `target` answers; `epoch` is the generation under which it was chosen."""

    call: Call
    request_id: str
    target: Target
    mirror: MirrorRoute
    epoch: Epoch
    streamed: bool
    compared: bool
    _kept: list[bytes] = field(default_factory=list)
    _kept_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """What is held in memory for it."""
        return len(self.call.body) + self._kept_bytes

    def saw(self, part: bytes) -> None:
        """A part of stable's answer passed. It runs for every token: no parsing here."""
        if not self.compared:
            return
        self._kept.append(part)
        self._kept_bytes += len(part)
        if self._kept_bytes > MAX_KEPT_BYTES:
            self._kept, self._kept_bytes, self.compared = [], 0, False

    async def said(self) -> Said | None:
        """Stable's answer; None when it has no text to compare."""
        transcript = Transcript(streamed=self.streamed)
        await read(transcript, b"".join(self._kept))
        return transcript.said()


async def read(transcript: Transcript, part: bytes) -> None:
    """Feeds a part of an answer, slice by slice."""
    for begin in range(0, len(part), _SLICE_BYTES):
        if begin:
            await asyncio.sleep(0)
        transcript.feed(part[begin : begin + _SLICE_BYTES])
