"""The models of a pool behind the routes, and what the pool refuses as answers of HTTP."""

import contextlib
import math
from collections.abc import AsyncIterator, Iterator
from typing import cast

from ...predict.pool.pool import ModelPool
from ...predict.pool.slot import (
    ModelBusy,
    ModelPinned,
    ModelSlot,
    PoolError,
    StillLoading,
    UnknownModel,
    UnknownVersion,
)
from ...telemetry.pool_metrics import PoolMetrics
from ..errors import HttpError, queue_full, unavailable
from ..predict.served import ListedModel
from ..predict.service import ModelIdentity, PredictService
from ..probes import Health
from .host import PooledModel


class PooledModels:
    """As the routes of classic models want them."""

    def __init__(self, pool: ModelPool, metrics: PoolMetrics, health: Health, version: str) -> None:
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
        self._find(name, version)

    @contextlib.asynccontextmanager
    async def use(
        self, name: str, version: str | None = None, *, metadata: bool = False
    ) -> AsyncIterator[PredictService]:
        if self._health.draining:
            self.check_open()
        slot = self._find(name, version)
        with contextlib.nullcontext() if metadata else self._counted(slot), answered():
            async with self.pool.use(slot) as resident:
                yield cast(PooledModel, resident.host).service

    def check_ready(self, name: str, version: str | None = None) -> None:
        slot = self._find(name, version)
        if self._health.draining:
            self.check_open()
        if slot.state != "READY":
            raise unavailable("loading", f"The model {name!r} is not loaded: {slot.reason or slot.state.lower()}.")

    def listed(self, name: str | None = None, version: str | None = None) -> list[ListedModel]:
        if name is None:
            slots = list(self.pool.slots.values())
        else:
            found = self._find(name, version)
            slots = [found, *(one for one in self.pool.versions(name) if one is not found and version is None)]
        return [
            ListedModel(
                ModelIdentity(*slot.entry.key), slot.state, self._metrics.model(slot.entry.key).statistics, slot.reason
            )
            for slot in slots
        ]

    def _find(self, name: str, version: str | None) -> ModelSlot:
        with answered():
            return self.pool.find(name, version)

    @contextlib.contextmanager
    def _counted(self, slot: ModelSlot) -> Iterator[None]:
        """Among the requests of its model, by how it ends."""
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
    """Errors of the pool as answers."""
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
