"""The models behind the routes of classic models: one of a server of its own, or those of a pool."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from .identity import ModelIdentity
from .service import PredictService


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model in a list of models; listing loads none. `state`: as in the index of the Open Inference Protocol."""

    identity: ModelIdentity
    state: str
    statistics: Callable[[], dict[str, Any]]
    reason: str = ""
    revision: str = ""  # of an entry of a pool whose version is shown by another name

    @property
    def ready(self) -> bool:
        return self.state == "READY"


class ServedModels(Protocol):
    """The models that routes serve. Unknown names and versions raise HttpError 404; None is the default version."""

    @property
    def version(self) -> str: ...

    def check_open(self) -> None:
        """Raises HttpError 503 while no request is taken."""

    def check(self, name: str, version: str | None = None) -> None:
        """Raises HttpError 404 unless the model exists."""

    def use(
        self, name: str, version: str | None = None, *, metadata: bool = False
    ) -> AbstractAsyncContextManager[PredictService]:
        """The model, which stays in memory until the context ends. `metadata`: the request computes nothing."""

    def check_ready(self, name: str, version: str | None = None) -> None:
        """Raises HttpError 503 for a model that is not in memory."""

    def listed(self, name: str | None = None, version: str | None = None) -> list[ListedModel]: ...


class OneModel:
    """A server's only model."""

    def __init__(self, service: PredictService) -> None:
        self._service = service

    @property
    def version(self) -> str:
        return self._service.identity.version

    def check_open(self) -> None:
        self._service.check_open()

    def check(self, name: str, version: str | None = None) -> None:
        self._service.check_model(name, version)

    def use(
        self, name: str, version: str | None = None, *, metadata: bool = False
    ) -> AbstractAsyncContextManager[PredictService]:
        self._service.check_model(name, version)
        return contextlib.nullcontext(self._service)

    def check_ready(self, name: str, version: str | None = None) -> None:
        self._service.check_model(name, version)
        self._service.check_open()

    def listed(self, name: str | None = None, version: str | None = None) -> list[ListedModel]:
        service = self._service
        if name is not None:
            service.check_model(name, version)
        state = "READY" if service.health.loaded else "LOADING"
        return [ListedModel(service.identity, state, service.metrics.statistics)]
