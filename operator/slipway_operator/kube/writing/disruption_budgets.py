"""Maintains the PodDisruptionBudget of each ModelDeployment: applied when its number changes, and every few minutes."""

import logging
import time
from collections.abc import Callable

from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import Refused, Stale
from slipway_operator.kube.resources import DISRUPTION_BUDGETS
from slipway_operator.kube.subjects import is_adapter
from slipway_operator.manifests.disruption_budget import disruption_budget
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.cluster.plan import Plan

AGAIN_AFTER_S = 240.0  # a deleted budget comes back within this time

log = logging.getLogger(__name__)


class DisruptionBudgets(Component):
    """One budget for each ModelDeployment; it is deleted with its owner."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._made: dict[ObjectKey, tuple[str, int, float]] = {}  # uid of the owner, pods that must stay, and when

    async def before(self, deployment: ReconciledDeployment, planned: Plan) -> None:
        """Apply the budget, if the plan has one; adapters have no pods of their own."""
        if planned.min_available is not None and not is_adapter(deployment.key[1]):
            await self.keep(deployment.obj, planned.min_available)

    async def keep(self, obj: Object, pods: int) -> None:
        """Apply the budget unless it was applied lately with this number of `pods` that must stay.

        A field of another field manager stays: the budget may be older than ours, or a user has edited it. Then, and
        without the permission in the release's Role, a warning is logged. Other ApiErrors are raised.
        """
        owner = Owner.of(obj)
        key = (owner.namespace, owner.name)
        uid, number, at = self._made.get(key, ("", -1, 0.0))
        if (uid, number) == (owner.uid, pods) and self._clock() - at < AGAIN_AFTER_S:
            return
        try:
            await self._client.apply(DISRUPTION_BUDGETS, disruption_budget(owner, pods), force=False)
        except (Refused, Stale) as error:
            log.warning("the PodDisruptionBudget of the model pods of %s/%s is not applied: %s", *key, error)
        self._made[key] = (owner.uid, pods, self._clock())

    def forget(self, key: ObjectKey) -> None:
        """Forget a ModelDeployment that is gone, and its budget with it."""
        self._made.pop(key, None)
