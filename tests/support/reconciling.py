"""A reconciler with the components that a test names, and whatever stands in for them."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from slipway_operator.api.objects import ObjectKey
from slipway_operator.component import Component
from slipway_operator.hooks.runner import HookRunner
from slipway_operator.kube.client import Client
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.gateways import Answer
from slipway_operator.kube.reading.objects import ObjectReader
from slipway_operator.kube.reading.observe import Observer
from slipway_operator.model.deployment.hooks import HookAnswer, HookCall
from slipway_operator.planning.decided import PlanSettings
from slipway_operator.providers.runner import MeasurementRunner
from slipway_operator.reconcile import Reconciler
from slipway_operator.telemetry.metrics import Metrics

SETTINGS = PlanSettings("image", "http://gateway/v1")


class NoGateways:
    async def answers(self) -> Sequence[Answer]:
        return ()


class RecordedCalls:
    """The calls of hooks or measurements; nothing is sent. `room`: whether there is room for the calls."""

    def __init__(self, room: bool = True, **answers: Any) -> None:
        self.room, self.known = room, answers
        self.followed: Iterable[Any] | None = None
        self.notified: list[HookCall] = []
        self.forgotten: list[ObjectKey] = []

    def answers(self, key: ObjectKey) -> dict[str, Any]:
        return {key: HookAnswer(True, "200 OK") for key in self.known}

    def follow(self, key: ObjectKey, calls: Iterable[Any]) -> bool:
        self.followed = calls
        return self.room

    def notify(self, key: ObjectKey, calls: Iterable[HookCall]) -> None:
        self.notified += calls

    def forget(self, key: ObjectKey) -> None:
        self.forgotten.append(key)


class RecordedHooks(RecordedCalls, HookRunner):
    """The hooks of a reconcile."""


class RecordedMeasurements(RecordedCalls, MeasurementRunner):
    """The measurements of a reconcile."""


def reconciler_of(
    client: Client,
    clock: Callable[[], datetime],
    components: Sequence[Component] = (),
    *,
    cache: ObjectCache | None = None,
    settings: PlanSettings = SETTINGS,
    metrics: Metrics | None = None,
) -> Reconciler:
    """`cache`: read as in the operator, where watches keep it up to date; None: each pass reads the API server."""
    objects = ObjectReader(client, cache or ObjectCache(), trusts_cache=cache is not None)
    observer = Observer(client, NoGateways())
    return Reconciler(client, objects, observer, components, settings, metrics or Metrics("test"), clock)
