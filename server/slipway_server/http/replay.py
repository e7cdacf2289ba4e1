"""Answers that their clients may come back for: kept as far as they are known, for a while and within bounds.

A tape is written by a task of its own and read by one connection at a time. When its reader is gone, the slot is free
within one step as ever, and the tokens stay: who comes back is told them from here, and the engine goes on behind them
after one prefill. A client that said that it comes back (`Asked.returns`) keeps its slot, too, as long as its tape.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from ..telemetry.metrics import Metrics
from .errors import ApiError, taken_over
from .resume import Asked, Identity, Progress
from .service import Delta

# What CPython takes: a delta with its token and a short text; one alternative of a log probability; a tape.
DELTA_BYTES, LOGPROB_BYTES, TAPE_BYTES = 240, 72, 2048
TURN_DELTAS = 256  # that are told at once before others get a turn
AGAIN = (429, 503)  # refusals that are over some time: what is known stays useful

Source = Callable[[tuple[int, ...]], AsyncGenerator[Delta, None]]
"""An answer's deltas; those of the given tokens, of which it begins, come first and cost one prefill."""
Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of all tapes together, but for `window_s`: how long one waits for its client; 0: none does."""

    window_s: float = 60.0
    size_bytes: int = 64 << 20
    streams: int = 256


class Tape:
    """One answer as far as it is known.

    Whoever sits down last reads it, from its beginning; the reader before is told that it was taken over.
    """

    def __init__(self, name: str, digest: bytes, start: tuple[int, ...]) -> None:
        """`digest`: of the request. `start`: tokens that were known before, and told by another server."""
        self.name, self.digest, self.since = name, digest, len(start)
        self.kept, self.size_bytes, self.seat = False, TAPE_BYTES, 0
        self.writer: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._start, self._dropped = start, 0
        self._deltas: list[Delta] = []
        self._failure: Exception | None = None
        self._moved = asyncio.Event()

    @property
    def position(self) -> int:
        """Deltas that are known: one for each token."""
        return self._dropped + len(self._deltas)

    @property
    def tokens(self) -> tuple[int, ...]:
        """To go on from; only of one that is whole."""
        return tuple(delta.token for delta in self._deltas) or self._start

    @property
    def ended(self) -> bool:
        return bool(self._deltas) and self._deltas[-1].finish is not None

    @property
    def spoiled(self) -> bool:
        """It broke for a reason that is the same for whoever asks again, or has nothing to tell."""
        failure = self._failure
        lasting = failure is not None and not (isinstance(failure, ApiError) and failure.status in AGAIN)
        return lasting or not self.position

    def begin(self) -> int:
        """Where its deltas go on being written: what stopped it before does not count any more."""
        self._failure = None
        return self.position

    def add(self, delta: Delta) -> None:
        self._deltas.append(delta)
        self.size_bytes += _size_of(delta)
        self._moved.set()

    def fail(self, failure: Exception) -> None:
        self._failure = failure
        self._moved.set()

    def stop(self) -> None:
        """Nothing more is computed for it."""
        if self.writer:
            self.writer.cancel()
            self.writer = None

    def sit(self) -> int:
        """A reader's number: the reader before learns that it is not the last any more."""
        self.seat += 1
        self._moved.set()
        return self.seat

    async def read(self, seat: int) -> AsyncGenerator[Delta, None]:
        """Deltas from the first to the last. Raises what their writer met; ApiError 409 when it was taken over."""
        at = 0
        while True:
            if seat != self.seat:
                raise taken_over()
            if at < self.position:
                delta = self._deltas[at - self._dropped]
                at += 1
                self._pass(at)
                yield delta
                if delta.finish:
                    return
                if at % TURN_DELTAS == 0:
                    await asyncio.sleep(0)
            elif self._failure:
                raise self._failure
            else:
                self._moved.clear()
                await self._moved.wait()

    def _pass(self, at: int) -> None:
        """What nobody will ask for again is not remembered."""
        if not self.kept:
            del self._deltas[: at - self._dropped]
            self._dropped = at


def _size_of(delta: Delta) -> int:
    told = ([delta.logprobs] if delta.logprobs else []) + list(delta.prompt_logprobs)
    return DELTA_BYTES + 4 * len(delta.text) + sum(LOGPROB_BYTES * (2 + len(item.tokens)) for item in told)


class Replays:
    """The tapes of one server."""

    def __init__(self, bounds: Bounds, metrics: Metrics, later: Later | None = None) -> None:
        self._bounds, self._metrics = bounds, metrics
        self._later = later or asyncio.get_running_loop().call_later
        self._open = bounds.window_s > 0
        self._tapes: dict[str, Tape] = {}
        self._left: dict[str, Tape] = {}  # those without a reader, the one that waits longest first
        self._size_bytes = 0
        metrics.replay_holds(lambda: len(self._left), lambda: self._size_bytes)

    async def answer(
        self, ask: Asked, identity: Identity, source: Source, *, progress: Progress | None, known: tuple[int, ...]
    ) -> AsyncGenerator[Delta, None]:
        """The deltas of an answer, from a tape where there can be one.

        `known`: tokens of the answer that the request brought along. Without `progress` nobody can come back for it.
        """
        if progress is None:
            async with aclosing(source(known)) as deltas:
                async for delta in deltas:
                    yield delta
            return
        tape = self._find(ask, identity) or self._new(ask, identity, known)
        seat, done = tape.sit(), False
        if not tape.ended and tape.writer is None:
            tape.writer = asyncio.create_task(self._write(tape, source, tape.begin()))
        try:
            async with aclosing(tape.read(seat)) as told:
                async for delta in told:
                    yield delta
            done = True
        finally:
            if tape.seat == seat:
                # Of one that was told to its end the last bytes may be lost on the way, to a client that comes back.
                self._leave(tape, keep=ask.returns if done else not progress.wrong, runs=ask.returns)

    def close(self) -> None:
        """The server ends: nobody will come back to it."""
        self._open = False
        for tape in list(self._left.values()):
            self._end(tape, "drained")

    # -- who comes

    def _find(self, ask: Asked, identity: Identity) -> Tape | None:
        """The tape of a stream that the same request takes up where it can be told from here on."""
        tape, resume = self._tapes.get(str(identity)), ask.resume
        if resume is None:
            return None
        if tape is None or tape.digest != ask.digest:
            self._metrics.replay_resumed("told" if resume.tokens else "repeated", 0)
            return None
        # Another server told more of it meanwhile, or told what came before without what this client wants to know.
        if len(resume.tokens) > tape.position or resume.position < tape.since:
            tape.sit()
            self._end(tape, "stale")
            self._metrics.replay_resumed("told" if resume.tokens else "repeated", 0)
            return None
        how = "ended" if tape.ended else "running" if tape.writer else "stopped"
        self._metrics.replay_resumed(how, max(0, tape.position - resume.position))
        self._forget_leaving(tape, "taken_up")
        return tape

    def _new(self, ask: Asked, identity: Identity, known: tuple[int, ...]) -> Tape:
        tape = Tape(str(identity), ask.digest, known)
        # Two requests under one name: only the first is known by it.
        if self._open and tape.name not in self._tapes:
            tape.kept = True
            self._tapes[tape.name] = tape
            self._grow(tape, TAPE_BYTES)
        return tape

    # -- what is told

    async def _write(self, tape: Tape, source: Source, behind: int) -> None:
        """`behind`: deltas that are on the tape already."""
        try:
            async with aclosing(source(tape.tokens)) as deltas:
                async for delta in deltas:
                    if behind:
                        behind -= 1
                        continue
                    before = tape.size_bytes
                    tape.add(delta)
                    self._grow(tape, tape.size_bytes - before)
        except Exception as failure:  # a reader's to raise, now or when it comes
            tape.fail(failure)
        # Cancelled, it is another task's already.
        tape.writer = None

    def _grow(self, tape: Tape, size_bytes: int) -> None:
        if not tape.kept:
            return
        self._size_bytes += size_bytes
        while self._size_bytes > self._bounds.size_bytes:
            if self._left:
                self._end(next(iter(self._left.values())), "evicted")
            else:
                self._unkeep(tape)
                break

    # -- who goes

    def _leave(self, tape: Tape, *, keep: bool, runs: bool) -> None:
        if not (keep and tape.kept and self._open) or tape.spoiled:
            self._end(tape)
            return
        if not runs:
            tape.stop()
        self._left[tape.name] = tape
        tape.timer = self._later(self._bounds.window_s, lambda: self._end(tape, "expired"))
        if len(self._left) > self._bounds.streams:
            self._end(next(iter(self._left.values())), "evicted")

    def _end(self, tape: Tape, how: str = "") -> None:
        """`how` it ended, of one without a reader."""
        tape.stop()
        self._forget_leaving(tape, how)
        self._unkeep(tape)

    def _forget_leaving(self, tape: Tape, how: str) -> None:
        """It has a timer as long as it has no reader."""
        if tape.timer:
            tape.timer.cancel()
            tape.timer = None
            del self._left[tape.name]
            self._metrics.replay_ended(how)

    def _unkeep(self, tape: Tape) -> None:
        if tape.kept:
            tape.kept = False
            del self._tapes[tape.name]
            self._size_bytes -= tape.size_bytes
