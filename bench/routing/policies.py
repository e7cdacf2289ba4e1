"""The rules that are compared. Each chooses a pod for a prompt and learns when its first and its last token came."""

import random
from collections import Counter
from typing import Protocol

from xxhash import xxh64_intdigest

from bench.routing.pods import BLOCK_TOKENS, KvCache
from bench.routing.trace import tokens
from slipway_gateway.balancing.endpoint_picker import LeastLoad
from slipway_gateway.balancing.prefix_affinity import Prefill, PrefixRouting
from slipway_gateway.balancing.prefix_index import MAX_BLOCKS
from slipway_gateway.balancing.prompt_blocks import PromptBlocks, blocks_of
from slipway_gateway.routing.table import Route, RouteTable

_ROUTE = Route("default/chat", "uid", "chat", prefix_affinity=True)


class Policy(Protocol):
    """`began` returns what `first` and `ended` of the same request get."""

    def pick(self, session: str, text: bytes, hashes: tuple[bytes, ...]) -> str: ...
    def began(self, pod: str, text: bytes, hashes: tuple[bytes, ...]) -> object: ...
    def first(self, pod: str, state: object) -> None: ...
    def ended(self, pod: str, state: object) -> None: ...


class _Loads:
    """Requests in flight at each pod."""

    def __init__(self, pods: tuple[str, ...], seed: int = 0) -> None:
        self.pods, self.loads = pods, Counter[str]()

    def began(self, pod: str, text: bytes, hashes: tuple[bytes, ...]) -> object:
        self.loads[pod] += 1
        return None

    def first(self, pod: str, state: object) -> None:
        pass

    def ended(self, pod: str, state: object) -> None:
        self.loads[pod] -= 1


class RandomChoice(_Loads):
    """Any pod: what a Service of Kubernetes does."""

    def __init__(self, pods: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(pods)
        self._draw = random.Random(seed)

    def pick(self, session: str, text: bytes, hashes: tuple[bytes, ...]) -> str:
        return self._draw.choice(self.pods)


class LeastRequests(_Loads):
    """The fewest requests in flight: our rule without prefixes."""

    def pick(self, session: str, text: bytes, hashes: tuple[bytes, ...]) -> str:
        return LeastLoad(self.loads).pick(self.pods, session)


class BoundedHash(_Loads):
    """Consistent hashing with bounded loads (125 % of the mean) on a prompt's first bytes, as KubeAI's PrefixHash."""

    _BYTES, _PERCENT = 100, 125

    def pick(self, session: str, text: bytes, hashes: tuple[bytes, ...]) -> str:
        start = xxh64_intdigest(text[: self._BYTES])
        most = (sum(self.loads.values()) + 1) * self._PERCENT / 100 / len(self.pods)
        ring = sorted(self.pods, key=lambda pod: (xxh64_intdigest(pod.encode()) - start) % (1 << 64))
        return next((pod for pod in ring if self.loads[pod] + 1 <= most), ring[0])


class PrefixFilter(_Loads):
    """llm-d's rule as published: pods that have 80 % of the prompt, of these the one with the least tokens to compute;
    all pods where that one has more of them than `_MOST_TOKENS` (20,480 tokens/s for 14 s)."""

    _PART, _MOST_TOKENS, _BLOCKS = 0.8, 286_720, 31_250

    def __init__(self, pods: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(pods)
        self._seen = {pod: KvCache(self._BLOCKS * BLOCK_TOKENS) for pod in pods}
        self._tokens = Counter[str]()

    def pick(self, session: str, text: bytes, hashes: tuple[bytes, ...]) -> str:
        prompt = tokens(text)
        near = [pod for pod in self.pods if self._seen[pod].cached_tokens(hashes) >= self._PART * prompt]

        def load(pod: str) -> tuple[int, int]:
            return self._tokens[pod], xxh64_intdigest(f"{pod} {session}".encode())

        best = min(near, key=load, default="")
        return best if best and self._tokens[best] <= self._MOST_TOKENS else min(self.pods, key=load)

    def began(self, pod: str, text: bytes, hashes: tuple[bytes, ...]) -> object:
        self.loads[pod] += 1
        missing = tokens(text) - self._seen[pod].cached_tokens(hashes)
        self._tokens[pod] += missing
        self._seen[pod].add(hashes)
        return missing

    def ended(self, pod: str, state: object) -> None:
        super().ended(pod, state)
        assert isinstance(state, int)
        self._tokens[pod] -= state


class PrefixAffinity(_Loads):
    """Ours: the code of the gateway."""

    def __init__(self, pods: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(pods)
        self._routing = PrefixRouting(MAX_BLOCKS)
        self._routing.follow(RouteTable({_ROUTE.name: _ROUTE}, endpoints={(_ROUTE.name, "r"): pods}))
        self._prompt: PromptBlocks | None = None

    def pick(self, session: str, text: bytes, hashes: tuple[bytes, ...]) -> str:
        self._prompt = blocks_of([text])
        return self._routing.picker(self._prompt, LeastLoad(self.loads)).pick(self.pods, session)

    def began(self, pod: str, text: bytes, hashes: tuple[bytes, ...]) -> object:
        self.loads[pod] += 1
        assert self._prompt
        return self._routing.begin(self._prompt, pod)

    def first(self, pod: str, state: object) -> None:
        assert isinstance(state, Prefill)
        state.end()


POLICIES: dict[str, type[RandomChoice | LeastRequests | BoundedHash | PrefixFilter | PrefixAffinity]] = {
    "random": RandomChoice,
    "least load": LeastRequests,
    "bounded-load hash": BoundedHash,
    "llm-d's rule": PrefixFilter,
    "slipway": PrefixAffinity,
}
OURS, LEAST = "slipway", "least load"
