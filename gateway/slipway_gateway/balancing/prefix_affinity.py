"""What is known of the prompts at each endpoint: blocks that it has seen, and bytes that it has yet to compute."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from ..routing.router import EndpointPicker
from ..routing.table import RouteTable
from .endpoint_picker import LeastLoad, PrefixAffinity
from .prefix_index import PrefixIndex
from .prompt_blocks import BLOCK_ENDS, PromptBlocks

# A prompt of which an endpoint has this part is compared only with others of which their endpoint had it.
CACHED_PART = 0.5
_NONE: Mapping[str, int] = MappingProxyType({})


class Prefill:
    """A prompt that an endpoint computes, until `end`; which has no effect after the first time."""

    __slots__ = ("_bytes", "_url", "_waiting")

    def __init__(self, waiting: Counter[str], url: str, size: int) -> None:
        self._waiting, self._url, self._bytes = waiting, url, size
        waiting[url] += size

    def end(self) -> None:
        if self._bytes:
            self._waiting[self._url] -= self._bytes
            self._bytes = 0
            if not self._waiting[self._url]:
                del self._waiting[self._url]


class PrefixRouting:
    """Prompts of the routes with prefix affinity. `max_blocks`: remembered of all endpoints; 0: none."""

    def __init__(self, max_blocks: int) -> None:
        self._index = PrefixIndex(max_blocks)
        self._waiting: Counter[str] = Counter()

    @property
    def blocks(self) -> int:
        """Blocks that are remembered."""
        return self._index.size

    def follow(self, table: RouteTable) -> None:
        """Adopts a new table: endpoints that are gone are forgotten."""
        affine = {route.name for route in table.routes.values() if route.prefix_affinity}
        self._index.follow({url for (name, _), urls in table.endpoints.items() if name in affine for url in urls})

    def picker(self, prompt: PromptBlocks | None, least: LeastLoad) -> EndpointPicker:
        """The policy for a request; `least` where it has no prompt."""
        if prompt is None:
            return least
        return PrefixAffinity(least, self.matched_bytes(prompt), self._waiting, prompt.name)

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
        self._index.add(url, prompt.owner, prompt.hashes)
        return Prefill(self._waiting, url, missing)

    def forget(self, url: str) -> None:
        """An endpoint did not answer: its engine may have started anew, with an empty cache."""
        self._index.forget(url)
