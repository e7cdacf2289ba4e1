"""The models of a pool behind the routes, and what the pool refuses as answers of HTTP."""

import contextlib
import math
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import cast

from aiohttp import web

from slipway_process.serving.errors import PREFIX, HttpError, queue_full, unavailable
from slipway_process.serving.probes import Health

from ...pool.pool import ProcessPool
from ...pool.slot import ModelBusy, ModelPinned, ModelSlot, PoolError, StillLoading, UnknownModel, UnknownVersion
from ...pool_metrics import PoolMetrics
from ..host import HostedModel
from ..identity import ModelIdentity
from ..served import ListedModel
from ..service import PredictService

_chosen: ContextVar[str] = ContextVar("chosen", default="")


def choosing(route: web.RouteDef) -> web.RouteDef:
    """The same route below the prefix of one version: for gateways each version is an endpoint with its own URL."""

    async def handle(request: web.Request) -> web.StreamResponse:
        chosen = _chosen.set(request.match_info["revision"])
        try:
            found: web.StreamResponse = await route.handler(request)
            return found
        finally:
            _chosen.reset(chosen)  # a connection has one context for all of its requests

    return web.RouteDef(route.method, f"{PREFIX}/{{revision:[^/]+}}{route.path}", handle, route.kwargs)


class PooledModels:
    """The models of a pool as `ServedModels`, which the routes of classic models use."""

    def __init__(self, pool: ProcessPool, metrics: PoolMetrics, health: Health, version: str) -> None:
        self.pool, self._metrics, self._health, self._version = pool, metrics, health, version

    @property
    def version(self) -> str:
        return self._version

    def check_open(self) -> None:
        if self._health.draining:
            raise unavailable("draining", "This server is shutting down: send the request to another one.")
        if not self._health.loaded:
            raise unavailable("loading", "The pinned models of this pool are still loading.")

    def check(self, name: str, version: str | None = None) -> None:
        self.find(name, version)

    @contextlib.asynccontextmanager
    async def use(
        self, name: str, version: str | None = None, *, metadata: bool = False
    ) -> AsyncIterator[PredictService]:
        if self._health.draining:
            self.check_open()
        slot = self.find(name, version)
        with contextlib.nullcontext() if metadata else self._counted(slot), answered():
            async with self.pool.use(slot) as resident:
                yield cast(HostedModel, resident.host).service

    def check_ready(self, name: str, version: str | None = None) -> None:
        slot = self.find(name, version)
        if self._health.draining:
            self.check_open()
        if slot.state != "READY":
            raise unavailable("loading", f"The model {name!r} is not loaded: {slot.reason or slot.state.lower()}.")

    def listed(self, name: str | None = None, version: str | None = None) -> list[ListedModel]:
        if name is None:
            slots = list(self.pool.slots.values())
        else:
            found = self.find(name, version)
            slots = [found, *(one for one in self.pool.versions(name) if one is not found and version is None)]
        return [
            ListedModel(
                ModelIdentity(slot.entry.name, slot.entry.shown_version or slot.entry.version, slot.entry.version),
                slot.state,
                self._metrics.model(slot.entry.key).statistics,
                slot.reason,
                slot.entry.version if slot.entry.shown_version else "",
            )
            for slot in slots
        ]

    def find(self, name: str, version: str | None = None) -> ModelSlot:
        """The entry that the URL's prefix chose, else the one that the request names. Raises HttpError 404 or 503."""
        with answered():
            chosen = _chosen.get()
            if not chosen:
                return self.pool.find(name, version)
            slot = self.pool.slots.get((name, chosen))
            if slot is None:
                # Gateways know an entry before this server's file has it, or for a moment longer.
                raise StillLoading(f"The revision {chosen!r} of {name!r} is not in the file of this pool.")
            if version not in (None, chosen, slot.entry.shown_version):
                raise UnknownVersion(f"Version {version!r} of {name!r} is not served here.")
            return slot

    @contextlib.contextmanager
    def _counted(self, slot: ModelSlot) -> Iterator[None]:
        """Count a request in the metrics of its model, by the outcome in which it ends."""
        metrics, outcome = self._metrics.model(slot.entry.key), "cancelled"
        metrics.arrived()
        try:
            yield
            outcome = "completed"
        except HttpError as error:
            outcome = error.outcome
            raise
        except Exception:
            outcome = "error"
            raise
        finally:
            metrics.outcome(outcome)


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Convert errors of the pool to HttpErrors."""
    try:
        yield
    except PoolError as error:
        raise answer_of(error) from None


def answer_of(error: PoolError) -> HttpError:
    text, retry_after_s = str(error), max(1, math.ceil(error.retry_after_s))
    match error:
        case UnknownModel():
            return HttpError(404, text, param="model", code="model_not_found")
        case UnknownVersion():
            return HttpError(404, text, param="version", code="version_not_found")
        case ModelPinned():
            return HttpError(409, text, param="model", code="model_pinned")
        case ModelBusy():
            return queue_full(text)
        case StillLoading():
            return HttpError(503, text, code="loading", retry_after_s=retry_after_s, outcome="loading")
        case _:
            return HttpError(503, text, code="model_unavailable", retry_after_s=retry_after_s, outcome="error")
