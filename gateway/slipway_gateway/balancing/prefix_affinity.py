"""What is known of the prompts at each endpoint: blocks that it has seen, and bytes that it has yet to compute."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from slipway_contracts.load_report import WAITING_REQUESTS, WAITING_TOKENS, read

from ..routing.router import EndpointPicker
from ..routing.table import RouteTable
from .endpoint_picker import LeastLoad, PrefixAffinity
from .prefix_index import PrefixIndex
from .prompt_blocks import BLOCK_ENDS, PromptBlocks

# A prompt of which an endpoint has this part is compared only with others of which their endpoint had it.
CACHED_PART = 0.5
# Of the text that a token stands for: about right for English, and the same for all endpoints.
BYTES_PER_TOKEN = 4
# What a pod reports with a response counts for so long: prompts that wait are computed within about that time.
REPORT_S = 2.0
# A report of more than this is no report: it would keep all requests from an endpoint.
_MOST_WAITING_BYTES = 1 << 30
_NONE: Mapping[str, int] = MappingProxyType({})


class Prefill:
    """A prompt that an endpoint computes, `size` bytes of it, until `end`, which counts once."""

    __slots__ = ("_left", "_url", "_waiting", "size")

    def __init__(self, waiting: Counter[str], url: str, size: int) -> None:
        self._waiting, self._url = waiting, url
        self.size = self._left = size
        waiting[url] += size

    def end(self) -> None:
        if self._left:
            self._waiting[self._url] -= self._left
            self._left = 0
            if not self._waiting[self._url]:
                del self._waiting[self._url]


@dataclass(frozen=True, slots=True)
class _Report:
    """Bytes of prompts that wait at an endpoint, of all gateways, as its pod reported it at `at_s`."""

    waiting_bytes: int
    at_s: float


def affine_endpoints(table: RouteTable) -> set[str]:
    """URLs of the endpoints of all routes with prefix affinity."""
    affine = {route.name for route in table.routes.values() if route.prefix_affinity}
    return {url for (name, _), urls in table.endpoints.items() if name in affine for url in urls}


class PrefixRouting:
    """Prompts of the routes with prefix affinity. `max_blocks`: remembered of all endpoints; 0: none."""

    def __init__(self, max_blocks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._index = PrefixIndex(max_blocks)
        self._waiting: Counter[str] = Counter()
        self._reports: dict[str, _Report] = {}
        self._clock = clock
        self._usual_bytes = 0.0  # of a prompt that its endpoint had to compute, a moving mean

    @property
    def blocks(self) -> int:
        """Blocks that are remembered."""
        return self._index.size

    def follow(self, table: RouteTable) -> None:
        """Adopts a new table: endpoints that are gone are forgotten."""
        endpoints = affine_endpoints(table)
        self._index.follow(endpoints)
        self._reports = {url: report for url, report in self._reports.items() if url in endpoints}

    def picker(self, prompt: PromptBlocks | None, least: LeastLoad) -> EndpointPicker:
        """The policy for a request; `least` where it has no prompt."""
        if prompt is None:
            return least
        return PrefixAffinity(least, self.matched_bytes(prompt), self._waiting_bytes(), prompt.name)

    def matched_bytes(self, prompt: PromptBlocks) -> Mapping[str, int]:
        """Bytes of a prompt that each endpoint has seen; those that have seen none are left out."""
        matched = self._index.matched(prompt.hashes)
        return {url: BLOCK_ENDS[depth - 1] for url, depth in matched.items()} if matched else _NONE

    def is_cached(self, prompt: PromptBlocks, url: str) -> bool:
        """Whether an endpoint has most of a prompt in its cache."""
        return self.matched_bytes(prompt).get(url, 0) >= CACHED_PART * prompt.size

    def begin(self, prompt: PromptBlocks, url: str) -> Prefill:
        """An endpoint gets a prompt."""
        missing = prompt.size - self.matched_bytes(prompt).get(url, 0)
        self._usual_bytes += (missing - self._usual_bytes) / 32
        self._index.add(url, prompt.owner, prompt.hashes)
        return Prefill(self._waiting, url, missing)

    def reported(self, url: str, header: str) -> None:
        """A pod reported its load with a response, in this header. vLLM counts requests and not tokens."""
        metrics = read(header)
        tokens = metrics.get(WAITING_TOKENS)
        size = metrics.get(WAITING_REQUESTS, 0.0) * self._usual_bytes if tokens is None else tokens * BYTES_PER_TOKEN
        if url in self._index.urls and size <= _MOST_WAITING_BYTES:
            self._reports[url] = _Report(round(size), self._clock())

    def _waiting_bytes(self) -> Mapping[str, int]:
        """What this gateway has sent to an endpoint, or what its pod reports of all gateways, if that is more."""
        since_s = self._clock() - REPORT_S
        fresh = {url: report.waiting_bytes for url, report in self._reports.items() if report.at_s >= since_s}
        if not any(fresh.values()):
            return self._waiting
        return {url: max(self._waiting[url], fresh.get(url, 0)) for url in self._waiting.keys() | fresh}

    def forget(self, url: str) -> None:
        """An endpoint did not answer: its engine may have started again, with an empty cache."""
        self._index.forget(url)
        self._reports.pop(url, None)
