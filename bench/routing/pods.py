"""Simulated engines: continuous batching in steps, a bounded number of prompt tokens in each, a cache of prompts."""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.routing.trace import BYTES_PER_TOKEN

BLOCK_TOKENS = 64
_BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """What a step of an engine takes: `step_s`, a part for each running request, a part for each prompt token."""

    prefill_tokens_per_s: float
    step_s: float
    request_s: float
    step_tokens: int = 2048  # of prompts in one step
    running: int = 64
    cache_tokens: int = 400_000


# Prefill as llm-d's own figures have it (20,480 tokens/s); steps as of an 8B model on such a card.
ACCELERATOR = EngineSpeed(20_480, 0.008, 0.00012)


@dataclass(slots=True)
class Work:
    """One request at a pod. `left`: prompt tokens to compute. `first_s`, `end_s`: of its first and its last token."""

    hashes: tuple[bytes, ...]
    prompt_tokens: int
    output_tokens: int
    came_s: float
    left: int = 0
    cached: int = 0
    first_s: float = 0.0
    end_s: float = 0.0
    written: int = 0


def block_hashes(text: bytes) -> tuple[bytes, ...]:
    """Of full blocks of an engine, chained."""
    parent, found = b"", []
    for start in range(0, len(text) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        parent = hashlib.blake2b(parent + text[start : start + _BLOCK_BYTES], digest_size=16).digest()
        found.append(parent)
    return tuple(found)


class KvCache:
    """Blocks of prompts that were computed, the least recently used one goes first."""

    def __init__(self, most_tokens: int) -> None:
        self._most = most_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def cached_tokens(self, hashes: Sequence[bytes]) -> int:
        count = 0
        for block in hashes:
            if block not in self._blocks:
                break
            count += 1
        return count * BLOCK_TOKENS

    def add(self, hashes: Sequence[bytes]) -> None:
        for block in reversed(hashes):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)


@dataclass(slots=True)
class Pod:
    """One engine. `busy_until_s`: the end of the step that runs; 0: none does."""

    speed: EngineSpeed
    cache: KvCache
    waiting: deque[Work] = field(default_factory=deque)
    running: list[Work] = field(default_factory=list)
    prefilling: deque[Work] = field(default_factory=deque)

    def take(self, work: Work) -> None:
        self.waiting.append(work)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running or self.prefilling)

    def step(self, now_s: float) -> tuple[float, list[Work], list[Work]]:
        """Runs one step: how long it takes, whose first token comes at its end, and who has its last one then."""
        while self.waiting and len(self.running) + len(self.prefilling) < self.speed.running:
            work = self.waiting.popleft()
            # One token is always computed: it gives the first one of the answer.
            work.cached = min(self.cache.cached_tokens(work.hashes), work.prompt_tokens - 1)
            work.left = work.prompt_tokens - work.cached
            self.prefilling.append(work)
        room, begun = self.speed.step_tokens, []
        while self.prefilling and room:
            work = self.prefilling[0]
            part = min(room, work.left)
            work.left -= part
            room -= part
            if not work.left:
                begun.append(self.prefilling.popleft())
        computed = self.speed.step_tokens - room
        speed = self.speed
        took_s = speed.step_s + len(self.running) * speed.request_s + computed / speed.prefill_tokens_per_s
        ended = []
        for work in self.running:
            work.written += 1
            if work.written >= work.output_tokens:
                work.end_s = now_s + took_s
                ended.append(work)
        for work in begun:
            work.first_s, work.written = now_s + took_s, 1
            self.cache.add(work.hashes)
        self.running = [work for work in self.running if not work.end_s] + begun
        return took_s, begun, ended
