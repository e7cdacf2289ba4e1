"""Maintains the NetworkPolicy of each ModelDeployment's pods: applied before the pods, and every few minutes."""

import logging
import time
from collections.abc import Callable

from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import Refused
from slipway_operator.kube.resources import NETWORK_POLICIES
from slipway_operator.kube.subjects import is_adapter
from slipway_operator.manifests.network_policy import NetworkPolicySettings, network_policy
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.cluster.plan import Plan

AGAIN_AFTER_S = 240.0  # shorter than the resync period: each resync reverts manual changes


log = logging.getLogger(__name__)


class NetworkPolicies(Component):
    """One policy for each ModelDeployment; it is deleted with its owner."""

    def __init__(
        self, client: Client, settings: NetworkPolicySettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._settings, self._clock = client, settings, clock
        self._made: dict[ObjectKey, tuple[tuple[str, bool], float]] = {}  # uid of the owner with `grouped`, and when

    async def before(self, deployment: ReconciledDeployment, planned: Plan) -> None:
        """Apply the policy that pods need; adapters have none of their own."""
        if is_adapter(deployment.key[1]):
            return
        await self.keep(deployment.obj, grouped=planned.grouped)

    async def keep(self, obj: Object, *, grouped: bool = False) -> None:
        """Apply the policy unless it was applied lately.

        Without the permission in the release's Role, pods run without the policy and a warning is logged: only an
        admin can add it, and clients must not lose their models for it. Other ApiErrors are raised before pods exist.
        """
        owner = Owner.of(obj)
        key = (owner.namespace, owner.name)
        made, at = self._made.get(key, (("", False), 0.0))
        if made == (owner.uid, grouped) and self._clock() - at < AGAIN_AFTER_S:
            return
        try:
            await self._client.apply(NETWORK_POLICIES, network_policy(owner, self._settings, grouped=grouped))
        except Refused as error:
            log.warning("no NetworkPolicy keeps others from the model pods of %s/%s: %s", *key, error)
        self._made[key] = ((owner.uid, grouped), self._clock())

    def forget(self, key: ObjectKey) -> None:
        """Forget a ModelDeployment that is gone, and its policy with it."""
        self._made.pop(key, None)
