"""Tries a client's grammar in a forked process: a grammar that crashes it or takes too long harms nothing else.

Some grammars evade llguidance's own limits: a `multipleOf` of a large prime compiles for half a minute, and ten
thousand rules that refer to one another overflow the stack.
"""

import contextlib
import math
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import TypeAlias

import msgspec
from llguidance import LLMatcher, LLTokenizer

from .compiler import GrammarError, check, compile_grammar, limit_met
from .examples import examples

CPU_S = 0.5  # of compiling and of the first masks
WALL_S = 10.0  # more than CPU_S, because the machine may be busy with other work
MEMORY_BYTES = 96 << 20
# Half the stack of the worker, which compiles the grammar again after the trial.
STACK_BYTES = 4 << 20
TOKENS = 16  # of the answer that a trial's first walk goes through
WALKS = 8
TOKENS_OF_STRUCTURE = 64
STRUCTURE = (b'"', b"{", b"[", b":", b",", b"}", b"]")
WALKS_CPU_S = 0.1
TOO_LARGE = "The grammar takes too much memory, or is nested too deeply: make it smaller."
TOO_SLOW = f"The grammar takes more than {CPU_S:g} s to be compiled: make it smaller."


# Of a mask, one bit for each token, the token to go on with. As a number: a vocabulary has 150,000 tokens and more,
# and loops over its bytes would take the time of the walks.
Choice: TypeAlias = Callable[[int], int]


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
        _walk_once(matcher.deep_copy(), kind, TOKENS, _ends())
        if time.process_time() > CPU_S:
            return TrialResult(TOO_SLOW)
        _walk_further(tokenizer, matcher, kind, text)
    except GrammarError as error:
        return TrialResult(str(error))
    except BaseException:  # a panic in llguidance is a BaseException
        return TrialResult(TOO_LARGE)
    return TrialResult("", len(text) + max(0, _resident_bytes() - before_bytes))


def _walk_further(tokenizer: LLTokenizer, matcher: LLMatcher, kind: str, text: str) -> None:
    """Walks along examples of the schema, if it is one, and then by what gives JSON its structure, within WALKS_CPU_S.

    The library meets some of its limits (LIMITS) only at the place of an answer where they are exceeded.

    Raises:
        GrammarError: a limit was met, or the grammar allows no token.
    """
    end_s = time.process_time() + WALKS_CPU_S
    structure = [tokenizer.tokenize_bytes(part)[0] for part in STRUCTURE]
    for number, example in enumerate(examples(text, WALKS) if kind == "json_schema" else [""] * WALKS):
        along = tokenizer.tokenize_str(example)
        choose = _along(along, _structural(structure, Random(number)))
        if not _walk_once(matcher.deep_copy(), kind, len(along) + TOKENS_OF_STRUCTURE, choose, end_s):
            return


def _walk_once(matcher: LLMatcher, kind: str, tokens: int, choose: Choice, end_s: float = math.inf) -> bool:
    """One walk of at most `tokens` tokens; False once the process has used `end_s` of CPU time."""
    for _ in range(tokens):
        if time.process_time() > end_s:
            return False
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        check(matcher, kind)
        if not mask:
            raise GrammarError("The grammar allows no answer.")
        if matcher.is_stopped():
            return True
        if not matcher.consume_tokens([choose(mask)]):
            # A token that the mask allows: what fails is a limit. A few tokens of the mask end in other tokens' bytes.
            if reason := limit_met(matcher, kind):
                raise GrammarError(reason)
            return True
    return True


def _ends() -> Choice:
    """The highest and the lowest allowed token in turns: some grammars compile fast and have slow masks."""
    turns = cycle((True, False))

    def choose(mask: int) -> int:
        return (mask if next(turns) else mask & -mask).bit_length() - 1

    return choose


def _along(tokens: list[int], then: Choice) -> Choice:
    """The tokens of an example as long as each is allowed, and then what `then` chooses."""
    left = iter(tokens)

    def choose(mask: int) -> int:
        nonlocal left
        if (token := next(left, None)) is not None and mask >> token & 1:
            return token
        left = iter(())
        return then(mask)

    return choose


def _structural(structure: list[int], random: Random) -> Choice:
    """Mostly the first allowed token of `structure`: so a string ends where it begins. Else any allowed token."""

    def choose(mask: int) -> int:
        if (allowed := [token for token in structure if mask >> token & 1]) and random.randrange(4):
            return allowed[0]
        first = random.randrange(mask.bit_length())
        above = mask >> first
        return first + (above & -above).bit_length() - 1

    return choose


def _resident_bytes() -> int:
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[1]) * resource.getpagesize()
