"""Tries a client's grammar in a forked process: a grammar that crashes it or takes too long harms nothing else.

Some grammars evade llguidance's own limits: a `multipleOf` of a large prime compiles for half a minute, and ten
thousand rules that refer to one another overflow the stack.
"""

import contextlib
import os
import resource
import signal
import time
from dataclasses import dataclass

import msgspec
from llguidance import LLMatcher, LLTokenizer

from .compiler import GrammarError, check, compile_grammar

CPU_S = 0.5  # of compiling and of the first masks
WALL_S = 10.0  # more than CPU_S, because the machine may be busy with other work
MEMORY_BYTES = 96 << 20
# Half the stack of the worker, which compiles the grammar again after the trial.
STACK_BYTES = 4 << 20
TOKENS = 16  # of the answer that a trial walks through
TOO_LARGE = "The grammar takes too much memory, or is nested too deeply: make it smaller."
TOO_SLOW = f"The grammar takes more than {CPU_S:g} s to be compiled: make it smaller."


class TrialResult(msgspec.Struct, frozen=True, array_like=True):
    """`refusal`: why the grammar cannot be used, "" if it can; `size_bytes`: roughly the compiled grammar's memory."""

    refusal: str = ""
    size_bytes: int = 0


@dataclass(slots=True)
class Trial:
    pid: int
    pipe: int
    deadline_s: float

    def result(self) -> TrialResult:
        """The result, once the pipe is readable. Closes the pipe and reaps the process, which has written or ended."""
        written = b""
        with contextlib.suppress(OSError):
            written = os.read(self.pipe, 4096)
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        if written:
            return msgspec.msgpack.decode(written, type=TrialResult)
        slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return TrialResult(TOO_SLOW if slow else TOO_LARGE)

    def expire(self, now_s: float) -> None:
        """Kills the process once its deadline has passed, which makes its pipe readable."""
        if now_s >= self.deadline_s:
            os.kill(self.pid, signal.SIGKILL)


def start_trial(tokenizer: LLTokenizer, kind: str, text: str) -> Trial:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            _bound()
            os.write(writing, msgspec.msgpack.encode(_try(tokenizer, kind, text)))
        finally:
            os._exit(0)
    os.close(writing)
    return Trial(pid, reading, time.monotonic() + WALL_S)


def _bound() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (1, 2))  # whole seconds; ends native code that does not return to Python
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    with open("/proc/self/statm") as sizes:
        mapped = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES, mapped + MEMORY_BYTES))


def _try(tokenizer: LLTokenizer, kind: str, text: str) -> TrialResult:
    before_bytes = _resident_bytes()
    try:
        matcher = compile_grammar(tokenizer, kind, text)
        _walk(matcher, kind)
    except GrammarError as error:
        return TrialResult(str(error))
    except BaseException:  # a panic in llguidance is a BaseException
        return TrialResult(TOO_LARGE)
    if time.process_time() > CPU_S:
        return TrialResult(TOO_SLOW)
    return TrialResult("", len(text) + max(0, _resident_bytes() - before_bytes))


def _walk(matcher: LLMatcher, kind: str) -> None:
    """Computes the masks of an answer's first tokens: some grammars compile fast and have slow masks.

    Raises:
        GrammarError: the matcher has failed, or the grammar allows no token.
    """
    for step in range(TOKENS):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        check(matcher, kind)
        if not mask:
            raise GrammarError("The grammar allows no answer.")
        if matcher.is_stopped():
            return
        tokens = [mask.bit_length() - 1, (mask & -mask).bit_length() - 1]
        if not matcher.try_consume_tokens([tokens[step % 2]]):
            return
        if matcher.is_stopped():
            return


def _resident_bytes() -> int:
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[1]) * resource.getpagesize()
