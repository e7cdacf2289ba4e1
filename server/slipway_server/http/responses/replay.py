"""Replay buffers: answers that a client can resume after it lost its connection, kept for a while and within limits.

A replay buffer is written by a task of its own and read by one connection at a time. When the reader disconnects, the
slot of the request is free within one step, and the tokens stay: a client that resumes gets them from the buffer, and
the engine continues after one prefill. A request with `returns` keeps its slot as long as its buffer is kept.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from slipway_process.serving.errors import HttpError, taken_over

from ...metrics import ServerMetrics
from .delta import Delta
from .resume import Identity, IncomingRequest, StreamPosition

# Measured in CPython: a delta with its token and a short text; one alternative of a log probability; an empty buffer.
DELTA_BYTES, LOGPROB_BYTES, BUFFER_BYTES = 240, 72, 2048
DELTAS_PER_YIELD = 256  # that a reader sends before it yields to the event loop
TRANSIENT_STATUSES = (429, 503)  # the same request may succeed later: the buffer stays useful

Source = Callable[[tuple[int, ...]], AsyncGenerator[Delta, None]]
"""The deltas of an answer that begins with the given tokens. Theirs come first and cost one prefill."""
CallLater = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """Limits of all buffers together. `window_s`: seconds that each buffer waits for its client; 0 disables replay."""

    window_s: float = 60.0
    size_bytes: int = 64 << 20
    streams: int = 256


class ReplayBuffer:
    """The deltas of one answer.

    The newest reader reads it from its beginning. An older reader gets a `taken_over` error.
    """

    def __init__(self, name: str, digest: bytes, prefix: tuple[int, ...], tenant: str) -> None:
        """`digest`: of the request. `prefix`: tokens that were known before; another server sent them."""
        self.name, self.digest, self.first_position, self.tenant = name, digest, len(prefix), tenant
        self.retained, self.size_bytes, self.reader = False, BUFFER_BYTES, 0
        self.writer: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._prefix, self._num_dropped = prefix, 0
        self._deltas: list[Delta] = []
        self._failure: Exception | None = None
        self._changed = asyncio.Event()

    @property
    def position(self) -> int:
        """The number of deltas so far: one for each token."""
        return self._num_dropped + len(self._deltas)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens to continue after. Only valid while no delta was dropped."""
        return tuple(delta.token for delta in self._deltas) or self._prefix

    @property
    def finished(self) -> bool:
        return bool(self._deltas) and self._deltas[-1].finish is not None

    @property
    def resumable(self) -> bool:
        """Whether the buffer has deltas, and no failure that a new attempt would meet again."""
        failure = self._failure
        transient = failure is None or (isinstance(failure, HttpError) and failure.status in TRANSIENT_STATUSES)
        return transient and self.position > 0

    def start_writing(self) -> int:
        """The position that a new writer appends at. An earlier failure does not count any more."""
        self._failure = None
        return self.position

    def append(self, delta: Delta) -> None:
        self._deltas.append(delta)
        self.size_bytes += _size_of(delta)
        self._changed.set()

    def fail(self, failure: Exception) -> None:
        self._failure = failure
        self._changed.set()

    def stop_writing(self) -> None:
        if self.writer:
            self.writer.cancel()
            self.writer = None

    def attach_reader(self) -> int:
        """The number of a new reader, which replaces the one before."""
        self.reader += 1
        self._changed.set()
        return self.reader

    async def read(self, reader: int) -> AsyncGenerator[Delta, None]:
        """All deltas in order. Raises the writer's failure, and HttpError 409 when another reader was attached."""
        index = 0
        while True:
            if reader != self.reader:
                raise taken_over()
            if index < self.position:
                delta = self._deltas[index - self._num_dropped]
                index += 1
                self._drop_before(index)
                yield delta
                if delta.finish:
                    return
                if index % DELTAS_PER_YIELD == 0:
                    await asyncio.sleep(0)
            elif self._failure:
                raise self._failure
            else:
                self._changed.clear()
                await self._changed.wait()

    def _drop_before(self, index: int) -> None:
        """Frees deltas that were read, unless a client can resume the stream."""
        if not self.retained:
            del self._deltas[: index - self._num_dropped]
            self._num_dropped = index


def _size_of(delta: Delta) -> int:
    logprobs = ([delta.logprobs] if delta.logprobs else []) + list(delta.prompt_logprobs)
    return DELTA_BYTES + 4 * len(delta.text) + sum(LOGPROB_BYTES * (2 + len(item.tokens)) for item in logprobs)


class ReplayStore:
    """The replay buffers of one server."""

    def __init__(self, limits: ReplayLimits, metrics: ServerMetrics, call_later: CallLater | None = None) -> None:
        self._limits, self._metrics = limits, metrics
        self._call_later = call_later or asyncio.get_running_loop().call_later
        self._open = limits.window_s > 0
        self._buffers: dict[str, ReplayBuffer] = {}
        self._detached: dict[str, ReplayBuffer] = {}  # without a reader; the longest detached one first
        self._size_bytes = 0
        self._tenant_bytes: Counter[str] = Counter()
        metrics.observe_replay(lambda: len(self._detached), lambda: self._size_bytes)

    async def answer(
        self,
        request: IncomingRequest,
        identity: Identity,
        source: Source,
        *,
        progress: StreamPosition | None,
        known: tuple[int, ...],
    ) -> AsyncGenerator[Delta, None]:
        """The deltas of an answer, from a replay buffer where there is one.

        `known`: tokens of the answer that came with the request. Without `progress` the stream cannot be resumed.
        """
        if progress is None:
            async with aclosing(source(known)) as deltas:
                async for delta in deltas:
                    yield delta
            return
        buffer = self._find(request, identity)
        if buffer is None:
            progress.starts_over = progress.recomputes
            buffer = self._create(request, identity, known)
        reader, complete = buffer.attach_reader(), False
        if not buffer.finished and buffer.writer is None:
            buffer.writer = asyncio.create_task(self._write(buffer, source, buffer.start_writing()))
        try:
            async with aclosing(buffer.read(reader)) as deltas:
                async for delta in deltas:
                    yield delta
            complete = True
        finally:
            if buffer.reader == reader:
                # The last bytes of a complete stream may be lost on the way: a client that returns may want them.
                keep = request.returns if complete else not progress.mismatched
                self._detach(buffer, keep=keep, running=request.returns)

    def close(self) -> None:
        """Discard the detached buffers: the server shuts down, and no client can resume here any more."""
        self._open = False
        for buffer in list(self._detached.values()):
            self._discard(buffer, "drained")

    # -- lookup

    def _find(self, request: IncomingRequest, identity: Identity) -> ReplayBuffer | None:
        """The buffer of the stream that this request resumes, when it holds all that the client lacks."""
        buffer, resume = self._buffers.get(str(identity)), request.resume
        if resume is None:
            return None
        if buffer is None or buffer.digest != request.digest:
            self._metrics.replay_resumed("told" if resume.tokens else "repeated", 0)
            return None
        # Another server got further meanwhile, or this buffer begins after the client's position.
        if len(resume.tokens) > buffer.position or resume.position < buffer.first_position:
            buffer.attach_reader()
            self._discard(buffer, "stale")
            self._metrics.replay_resumed("told" if resume.tokens else "repeated", 0)
            return None
        state = "ended" if buffer.finished else "running" if buffer.writer else "stopped"
        self._metrics.replay_resumed(state, max(0, buffer.position - resume.position))
        self._remove_from_detached(buffer, "taken_up")
        return buffer

    def _create(self, request: IncomingRequest, identity: Identity, known: tuple[int, ...]) -> ReplayBuffer:
        buffer = ReplayBuffer(str(identity), request.digest, known, request.tenant)
        # Of two requests with the same name only the first one can be resumed.
        if self._open and buffer.name not in self._buffers:
            buffer.retained = True
            self._buffers[buffer.name] = buffer
            self._add_size(buffer, BUFFER_BYTES)
        return buffer

    # -- writing

    async def _write(self, buffer: ReplayBuffer, source: Source, num_written: int) -> None:
        """Appends the source's deltas after the first `num_written`, which the buffer has already."""
        try:
            async with aclosing(source(buffer.tokens)) as deltas:
                async for delta in deltas:
                    if num_written:
                        num_written -= 1
                        continue
                    before = buffer.size_bytes
                    buffer.append(delta)
                    self._add_size(buffer, buffer.size_bytes - before)
        except Exception as failure:  # its reader raises it, now or when one is attached
            buffer.fail(failure)
        # Not after a cancellation: then another task may be its writer already.
        buffer.writer = None

    def _add_size(self, buffer: ReplayBuffer, size_bytes: int) -> None:
        if not buffer.retained:
            return
        self._size_bytes += size_bytes
        self._tenant_bytes[buffer.tenant] += size_bytes
        while self._size_bytes > self._limits.size_bytes:
            self._evict()

    def _evict(self) -> None:
        """Forgets a buffer of the tenant whose buffers are largest together, so that it evicts its own.

        It is the one that has been without a reader for longest; without such a one the largest that is read, whose
        stream goes on and cannot be resumed.
        """
        ((tenant, _),) = self._tenant_bytes.most_common(1)
        if idle := next((one for one in self._detached.values() if one.tenant == tenant), None):
            self._discard(idle, "evicted")
        else:
            read = (one for one in self._buffers.values() if one.tenant == tenant)
            self._release(max(read, key=lambda one: one.size_bytes))

    # -- readers that leave

    def _detach(self, buffer: ReplayBuffer, *, keep: bool, running: bool) -> None:
        """The buffer's reader left. `keep` the buffer for a client that resumes; `running`: the engine continues."""
        if not (keep and buffer.retained and self._open and buffer.resumable):
            self._discard(buffer)
            return
        if not running:
            buffer.stop_writing()
        self._detached[buffer.name] = buffer
        buffer.timer = self._call_later(self._limits.window_s, lambda: self._discard(buffer, "expired"))
        if len(self._detached) > self._limits.streams:
            tenants = Counter(one.tenant for one in self._detached.values())
            ((tenant, _),) = tenants.most_common(1)
            self._discard(next(one for one in self._detached.values() if one.tenant == tenant), "evicted")

    def _discard(self, buffer: ReplayBuffer, reason: str = "") -> None:
        """Stop the writer and forget the buffer. `reason`: for the metrics, where the buffer is detached."""
        buffer.stop_writing()
        self._remove_from_detached(buffer, reason)
        self._release(buffer)

    def _remove_from_detached(self, buffer: ReplayBuffer, reason: str) -> None:
        """Take the buffer off the detached ones. It has a timer as long as it is detached."""
        if buffer.timer:
            buffer.timer.cancel()
            buffer.timer = None
            del self._detached[buffer.name]
            self._metrics.replay_ended(reason)

    def _release(self, buffer: ReplayBuffer) -> None:
        """Forget the buffer: no request can resume it any more."""
        if buffer.retained:
            buffer.retained = False
            del self._buffers[buffer.name]
            self._size_bytes -= buffer.size_bytes
            self._tenant_bytes[buffer.tenant] -= buffer.size_bytes
            if not self._tenant_bytes[buffer.tenant]:
                del self._tenant_bytes[buffer.tenant]
