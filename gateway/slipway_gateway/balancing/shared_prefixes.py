"""Prefix affinity in the compiled data plane, where its fast lane chooses endpoints too: both lanes know the same."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..routing.router import EndpointPicker
from ..routing.table import Route, RouteTable
from ..wire.request_fields import RequestFields
from .endpoint_picker import LeastLoad, PrefixAffinity
from .prefix_affinity import CACHED_PART, affine_endpoints
from .prompt_blocks import PromptBlocks, prompt_of

if TYPE_CHECKING:
    from slipway_plane import _native


class SharedPrefixRouting:
    """`PrefixRouting` in the data plane."""

    def __init__(self, native: "_native.PrefixRouting", clock: Callable[[], float]) -> None:
        self.native, self._clock = native, clock

    @property
    def blocks(self) -> int:
        return self.native.blocks

    def follow(self, table: RouteTable) -> None:
        self.native.follow(affine_endpoints(table))

    def picker(self, prompt: PromptBlocks | None, least: LeastLoad) -> EndpointPicker:
        if prompt is None:
            return least
        matched, waiting = self.native.known(b"".join(prompt.hashes), self._clock())
        return PrefixAffinity(least, matched, waiting, prompt.name)

    def is_cached(self, prompt: PromptBlocks, url: str) -> bool:
        return self.native.matched_at(b"".join(prompt.hashes), url) >= CACHED_PART * prompt.size

    def begin(self, prompt: PromptBlocks, url: str) -> "_native.Prefill":
        return self.native.begin(b"".join(prompt.hashes), prompt.size, prompt.owner, url)

    def reported(self, url: str, header: str) -> None:
        self.native.reported(url, header.encode("utf-8", "replace"), self._clock())

    def forget(self, url: str) -> None:
        self.native.forget(url)

    def compare(
        self, one: "_native.RecountedPrompt", path: str, fields: RequestFields, route: Route, tenant: str, key: str
    ) -> dict[str, bool]:
        """Whether a prompt of the lane has the same blocks here, and by what was known then the same endpoint."""
        prompt = prompt_of(path, fields, replace(route, prefix_affinity=True), tenant, key)
        if prompt is None:
            return {"prompt": False}
        same = {"prompt": (b"".join(prompt.hashes), prompt.size) == (one.hashes, one.size)}
        if one.pods:
            loads = {url: load for url, load, _, _ in one.pods if load}
            matched = {url: size for url, _, size, _ in one.pods if size}
            waiting = {url: size for url, _, _, size in one.pods if size}
            policy = PrefixAffinity(LeastLoad(loads), matched, waiting, prompt.name)
            same["endpoint"] = policy.pick([pod[0] for pod in one.pods], key) == one.url
        return same
