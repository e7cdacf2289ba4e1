"""Keeps a NetworkPolicy around the pods of each ModelDeployment: made before its pods, and mended every few minutes."""

import logging
import time
from collections.abc import Callable
from typing import Any

from slipway_operator.api.objects import ObjectKey
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import Refused
from slipway_operator.kube.resources import NETWORK_POLICIES
from slipway_operator.manifests.fence import FenceSettings, network_policy
from slipway_operator.manifests.owner import Owner

AGAIN_AFTER_S = 240.0  # below the resync: each look at every ModelDeployment mends what was changed by hand


log = logging.getLogger(__name__)


class Fences:
    """One policy for each ModelDeployment; it goes with its owner."""

    def __init__(self, client: Client, settings: FenceSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._settings, self._clock = client, settings, clock
        self._made: dict[ObjectKey, tuple[str, float]] = {}  # uid of the owner, and when

    async def keep(self, obj: dict[str, Any]) -> None:
        """Apply the policy where it was not lately.

        A release whose Role lacks the right goes on unfenced, with a warning: rights are the admin's to give, and
        clients must not lose their models for it. Any other ApiError is raised, before there are pods.
        """
        owner = Owner.of(obj)
        key = (owner.namespace, owner.name)
        uid, at = self._made.get(key, ("", 0.0))
        if uid == owner.uid and self._clock() - at < AGAIN_AFTER_S:
            return
        try:
            await self._client.apply(NETWORK_POLICIES, network_policy(owner, self._settings))
        except Refused as error:
            log.warning("no NetworkPolicy keeps others from the model pods of %s/%s: %s", *key, error)
        self._made[key] = (owner.uid, self._clock())

    def forget(self, key: ObjectKey) -> None:
        """The ModelDeployment is gone, and its policy with it."""
        self._made.pop(key, None)
