"""Stores the weights of each revision: in its ControllerRevision, and in the ConfigMap that its pods read."""

import logging
import time
from collections import OrderedDict

from slipway_operator.api.objects import Object
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import Exists, Leaving, NotFound, Refused, Stale
from slipway_operator.kube.resources import CONFIG_MAPS, CONTROLLER_REVISIONS
from slipway_operator.manifests.history import config_map
from slipway_operator.model.cluster import weights
from slipway_operator.model.cluster.plan import Pin, Plan

LOOK_AGAIN_S = 600.0  # the ConfigMap may have been deleted; there is no watch on it
KEPT = 8192  # pins that are known to be stored

log = logging.getLogger(__name__)


class Pins(Component):
    """Stores pins; each stored one is checked again every LOOK_AGAIN_S."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._seen: OrderedDict[tuple[str, str, str, Pin], float] = OrderedDict()

    async def before(self, deployment: ReconciledDeployment, planned: Plan) -> None:
        """Store the plan's pins. Where a lost record is created again, its ConfigMap went too: the next pass looks."""
        await self.hold(deployment.obj, planned.pins)
        if any(item.manifest["kind"] == CONTROLLER_REVISIONS.kind for item in planned.create):
            self._check_again(deployment.obj)

    async def hold(self, obj: Object, pins: tuple[Pin, ...]) -> None:
        """Store the pins that are missing; a stored one is never replaced.

        Raises:
            Stale: when a record is gone, changed meanwhile, or has other weights.
            Leaving: when the namespace is being deleted.
        """
        metadata = obj["metadata"]
        for pin in pins:
            key = (metadata["namespace"], metadata["name"], metadata["uid"], pin)
            if time.monotonic() - self._seen.get(key, -LOOK_AGAIN_S) < LOOK_AGAIN_S:
                continue
            await _keep(self._client, metadata["namespace"], pin)
            self._seen[key] = time.monotonic()
            self._seen.move_to_end(key)
            if len(self._seen) > KEPT:
                self._seen.popitem(last=False)

    def _check_again(self, obj: Object) -> None:
        metadata = obj["metadata"]
        former = [key for key in self._seen if key[:3] == (metadata["namespace"], metadata["name"], metadata["uid"])]
        for key in former:
            del self._seen[key]


async def _keep(client: Client, namespace: str, pin: Pin) -> None:
    try:
        record = await client.get(CONTROLLER_REVISIONS, namespace, pin.record)
        kept = weights.parse((record["metadata"].get("annotations") or {}).get(weights.ANNOTATION))
        if kept and kept != pin.weights:
            raise Stale(f"ControllerRevision {pin.record} keeps {kept.digest} already")
        if not kept:
            # With the resourceVersion that was read: of two writers the second one gets a conflict.
            change = {
                "resourceVersion": record["metadata"]["resourceVersion"],
                "annotations": {weights.ANNOTATION: weights.render(pin.weights)},
            }
            record = await client.patch(CONTROLLER_REVISIONS, namespace, pin.record, {"metadata": change})
        if pin.config_map:
            await _publish(client, record, pin)
    except NotFound as error:
        raise Stale(str(error)) from error


async def _publish(client: Client, record: Object, pin: Pin) -> None:
    """Create the ConfigMap with the weights. A refusal is logged, because pods start without the ConfigMap.

    They then load the bytes at the source, and a pod that reports other bytes than the record is evicted, as with a
    forged ConfigMap. The operator never reads the ConfigMap, so it needs no permission for that.
    """
    try:
        await client.create(CONFIG_MAPS, config_map(pin.config_map, record, pin.weights))
    except Exists:
        return
    except Leaving:
        raise
    except Refused as error:  # the operator was upgraded before its permissions
        log.warning("ConfigMap %s/%s cannot be made: %s", record["metadata"]["namespace"], pin.config_map, error)
