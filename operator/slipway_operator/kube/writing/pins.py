"""Keeps what revisions' weights are: in the record of each, and in the ConfigMap that its pods read."""

import logging
import time
from collections import OrderedDict

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import Exists, Leaving, NotFound, Refused, Stale
from slipway_operator.kube.resources import CONFIG_MAPS, CONTROLLER_REVISIONS
from slipway_operator.manifests.pin import config_map
from slipway_operator.model.cluster import weights
from slipway_operator.model.cluster.plan import Pin

LOOK_AGAIN_S = 600.0  # somebody may have deleted the ConfigMap; nobody watches it
KEPT = 8192  # pins that were seen to be there

log = logging.getLogger(__name__)


class Pins:
    """What is in order is looked at again now and then."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str, str, Pin], float] = OrderedDict()

    async def hold(self, client: Client, obj: Object, pins: tuple[Pin, ...]) -> None:
        """Write down what is not yet; what is kept is never replaced.

        Raises:
            Stale: when a record is gone, changed meanwhile, or keeps something else.
            Leaving: when the namespace is being deleted.
        """
        metadata = obj["metadata"]
        for pin in pins:
            key = (metadata["namespace"], metadata["name"], metadata["uid"], pin)
            if time.monotonic() - self._seen.get(key, -LOOK_AGAIN_S) < LOOK_AGAIN_S:
                continue
            await _keep(client, metadata["namespace"], pin)
            self._seen[key] = time.monotonic()
            self._seen.move_to_end(key)
            if len(self._seen) > KEPT:
                self._seen.popitem(last=False)


async def _keep(client: Client, namespace: str, pin: Pin) -> None:
    try:
        record = await client.get(CONTROLLER_REVISIONS, namespace, pin.record)
        kept = weights.parse((record["metadata"].get("annotations") or {}).get(weights.ANNOTATION))
        if kept and kept != pin.weights:
            raise Stale(f"ControllerRevision {pin.record} keeps {kept.digest} already")
        if not kept:
            # With the version that was read: of two writers the second one hears that it is late.
            change = {
                "resourceVersion": record["metadata"]["resourceVersion"],
                "annotations": {weights.ANNOTATION: weights.render(pin.weights)},
            }
            record = await client.patch(CONTROLLER_REVISIONS, namespace, pin.record, {"metadata": change})
        await _publish(client, record, pin)
    except NotFound as error:
        raise Stale(str(error)) from error


async def _publish(client: Client, record: Object, pin: Pin) -> None:
    """Without it later pods load what they find, and one with other bytes makes way; so nothing else waits for it.

    It is never read: no right to look into the ConfigMaps of others is asked for. One that somebody forged leads pods
    to bytes that they report, and these are compared with the record.
    """
    try:
        await client.create(CONFIG_MAPS, config_map(pin.config_map, record, pin.weights))
    except Exists:
        return
    except Leaving:
        raise
    except Refused as error:  # an operator that was upgraded before its permissions were
        log.warning("ConfigMap %s/%s cannot be made: %s", record["metadata"]["namespace"], pin.config_map, error)
