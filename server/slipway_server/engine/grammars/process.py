"""The grammar process: it loads the tokenizer once and forks a worker; when the worker ends, it forks another one.

So a grammar that crashes the worker despite the limits costs milliseconds and its own request.
"""

import logging
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy
from llguidance import LLMatcher, LLTokenizer

from slipway_process import logs

from ... import environment
from .compiler import GrammarError, check, compile_grammar, limit_met, load_tokenizer
from .messages import (
    PACKET_BYTES,
    Advance,
    Advances,
    Drop,
    FromGrammars,
    Hello,
    Masked,
    MaskedRows,
    Prepare,
    Prepared,
    encode,
    to_grammars,
)
from .trial import Trial, TrialResult, start_trial

log = logging.getLogger("slipway.grammars")

HEADER_BYTES = 64  # of the shared memory: the number of the sequence whose mask is being computed
CACHE_BYTES = 64 << 20  # of compiled grammars
MAX_REFUSED = 1024  # grammars that are known to be refused
MAX_TRIALS = 2  # at once; others wait
MEMORY_BYTES = 1 << 30  # of address space, for all matchers together
TOGETHER_S = 0.002  # masks that are computed within this time are sent in one message
POLL_S = 0.1  # between checks of the trials' deadlines
SHORT_LIFE_S = 1.0
FOREIGN = "The tokens of this answer do not follow its grammar."


class Settings(msgspec.Struct, frozen=True):
    """From the engine, as JSON: what to load, and how many rows of masks there are."""

    tokenizer: str
    vocabulary: int
    stop_token_ids: tuple[int, ...]
    rows: int
    generation: int


class Memory:
    """The shared memory with the masks, one row for each sequence. The engine maps it too."""

    def __init__(self, descriptor: int, rows: int, words: int) -> None:
        size = HEADER_BYTES + rows * words * 4
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)
        self._map = mmap.mmap(descriptor, size)
        self.rows = numpy.frombuffer(self._map, numpy.int32, rows * words, HEADER_BYTES).reshape(rows, words)
        self.computing = -1

    @property
    def computing(self) -> int:
        """The number of the sequence whose mask is being computed; -1: none. It outlives a worker that crashes."""
        found: int = struct.unpack_from("<q", self._map)[0]
        return found

    @computing.setter
    def computing(self, sequence: int) -> None:
        struct.pack_into("<q", self._map, 0, sequence)


@dataclass(slots=True)
class Following:
    """A sequence's matcher, and the tokens that it has consumed."""

    matcher: LLMatcher
    position: int = 0


class Worker:
    def __init__(self, tokenizer: LLTokenizer, connection: socket.socket, memory: Memory, generation: int) -> None:
        self._tokenizer, self._connection, self._memory = tokenizer, connection, memory
        self._generation = generation
        self._grammars: OrderedDict[bytes, tuple[LLMatcher, int]] = OrderedDict()  # with their sizes
        self._cached_bytes = 0
        self._refused: OrderedDict[bytes, str] = OrderedDict()
        self._trials: dict[int, tuple[Prepare, Trial]] = {}  # by their pipes
        self._queue: deque[Prepare] = deque()
        self._following: dict[int, Following] = {}
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def serve(self) -> None:
        """Handles messages until the engine closes the socket."""
        while True:
            for descriptor, _ in self._poll.poll(POLL_S * 1000 if self._trials else None):
                if descriptor in self._trials:
                    self._end_trial(descriptor)
                elif not self._receive():
                    return
            now_s = time.monotonic()
            for _, trial in self._trials.values():
                trial.expire(now_s)

    def _receive(self) -> bool:
        packet = self._connection.recv(PACKET_BYTES)
        if not packet:
            return False
        message = to_grammars.decode(packet)
        # Messages to a predecessor are dropped: the engine sends everything again after this worker's Hello.
        if message.generation == self._generation:
            if isinstance(message, Prepare):
                self._prepare(message)
            elif isinstance(message, Advances):
                self._advance_all(message.sequences)
            else:
                self._drop(message)
        return True

    def _send(self, message: FromGrammars) -> None:
        self._connection.send(encode(message))

    # --- grammars -----------------------------------------------------------------------------------------------------

    def _prepare(self, message: Prepare) -> None:
        digest = message.digest
        if digest in self._grammars or digest in self._refused:
            self._send(Prepared(digest, self._refused.get(digest, "")))
        elif all(other.digest != digest for other in self._unfinished()):
            self._queue.append(message)
            self._start_trials()

    def _unfinished(self) -> list[Prepare]:
        return [*self._queue, *(message for message, _ in self._trials.values())]

    def _start_trials(self) -> None:
        while self._queue and len(self._trials) < MAX_TRIALS:
            message = self._queue.popleft()
            trial = start_trial(self._tokenizer, message.kind, message.text)
            self._trials[trial.pipe] = message, trial
            self._poll.register(trial.pipe, select.POLLIN)

    def _end_trial(self, pipe: int) -> None:
        self._poll.unregister(pipe)
        message, trial = self._trials.pop(pipe)
        refusal = self._compile(message, trial.result())
        if refusal:
            self._refused[message.digest] = refusal
            if len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
        self._send(Prepared(message.digest, refusal))
        self._start_trials()

    def _compile(self, message: Prepare, result: TrialResult) -> str:
        """Compiles the grammar into the cache, which evicts the least recently used ones.

        Returns why the grammar is refused; "" when it is not.
        """
        if result.refusal:
            return result.refusal
        try:
            matcher = compile_grammar(self._tokenizer, message.kind, message.text)
        except GrammarError as error:
            return str(error)
        self._grammars[message.digest] = matcher, result.size_bytes
        self._cached_bytes += result.size_bytes
        while self._cached_bytes > CACHE_BYTES and len(self._grammars) > 1:
            _, (_, size_bytes) = self._grammars.popitem(last=False)
            self._cached_bytes -= size_bytes
        return ""

    # --- sequences ----------------------------------------------------------------------------------------------------

    def _advance_all(self, sequences: list[Advance]) -> None:
        """Computes the masks in order. Sends the results together, but finished ones do not wait for a slow one."""
        done: list[Masked] = []
        sent_s = time.perf_counter()
        for one in sequences:
            self._memory.computing = one.sequence
            result = self._advance(one)
            self._memory.computing = -1
            done += [result] if result else []
            now_s = time.perf_counter()
            if done and (done[-1].refusal or now_s - sent_s > TOGETHER_S):
                self._send(MaskedRows(done))
                done, sent_s = [], now_s
        if done:
            self._send(MaskedRows(done))

    def _advance(self, message: Advance) -> Masked | None:
        started_s = time.perf_counter()
        following = self._find(message)
        if following is None:
            return Masked(message.sequence, message.position + len(message.tokens), missing=True)
        refusal = self._compute(following, message)
        if not message.mask and not refusal:
            return None
        return Masked(message.sequence, following.position, time.perf_counter() - started_s, refusal)

    def _find(self, message: Advance) -> Following | None:
        if message.position == 0 and message.digest in self._grammars:
            self._grammars.move_to_end(message.digest)
            self._following[message.sequence] = Following(self._grammars[message.digest][0].deep_copy())
        found = self._following.get(message.sequence)
        return found if found and found.position == message.position else None

    def _compute(self, following: Following, message: Advance) -> str:
        """Consumes the tokens and writes the mask. Returns why there is no mask; "" when there is one."""
        following.position += len(message.tokens)
        if message.tokens and not following.matcher.consume_tokens(message.tokens):
            return limit_met(following.matcher) or FOREIGN
        if message.mask:
            row = self._memory.rows[message.row]
            following.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        try:
            check(following.matcher)
        except GrammarError as error:
            return str(error)
        return ""

    def _drop(self, message: Drop) -> None:
        for sequence in message.sequences:
            self._following.pop(sequence, None)


def main() -> None:
    logs.configure(environment.log_level())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    settings = msgspec.json.decode(sys.argv[3], type=Settings)
    try:
        tokenizer = load_tokenizer(Path(settings.tokenizer), settings.vocabulary, settings.stop_token_ids)
    except (GrammarError, OSError) as error:
        connection.send(encode(Hello(settings.generation, refusal=str(error))))
        while connection.recv(PACKET_BYTES):
            pass
        return
    memory = Memory(int(sys.argv[2]), settings.rows, -(-tokenizer.vocab_size // 32))
    _serve_for_ever(tokenizer, connection, memory, settings.generation)


def _serve_for_ever(tokenizer: LLTokenizer, connection: socket.socket, memory: Memory, generation: int) -> None:
    while True:
        began_s = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _serve(tokenizer, connection, memory, generation)
        _, status = os.waitpid(pid, 0)
        if status == 0:
            return
        log.warning("the process of grammars ended and is started again", extra={"status": status})
        if time.monotonic() - began_s < SHORT_LIFE_S:
            time.sleep(SHORT_LIFE_S)
        generation += 1


def _serve(tokenizer: LLTokenizer, connection: socket.socket, memory: Memory, generation: int) -> None:
    """Runs the worker in the forked process, with a memory limit. Never returns; exits with 0 if the engine is gone."""
    status = 1
    try:
        with open("/proc/self/statm") as sizes:
            mapped = int(sizes.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES, mapped + MEMORY_BYTES))
        culprit, memory.computing = memory.computing, -1
        words = memory.rows.shape[1]
        connection.send(encode(Hello(generation, culprit, words=words)))
        Worker(tokenizer, connection, memory, generation).serve()
        status = 0
    except ConnectionError:
        status = 0  # the engine is gone
    except BaseException:
        log.exception("the process of grammars failed")
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
