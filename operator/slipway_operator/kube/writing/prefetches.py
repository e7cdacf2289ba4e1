"""Creates the Jobs that bring models to nodes. Without them pods download by themselves, so nothing waits for them."""

import logging
from collections import OrderedDict

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import Exists, Leaving, NotFound, Refused, Unavailable
from slipway_operator.kube.resources import JOBS

KEPT = 8192  # Jobs that are known to have been created

log = logging.getLogger(__name__)


class Prefetches:
    """Creates each Job once: one that was deleted after its end is not created again, one that is refused neither."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    async def start(self, client: Client, jobs: tuple[Object, ...]) -> None:
        """Create the Jobs that are missing; one that cannot be created is logged.

        Raises:
            Leaving: when the namespace is being deleted.
            Fenced: when this process may not write.
        """
        for job in jobs:
            metadata = job["metadata"]
            key = (metadata["namespace"], metadata["name"], metadata["ownerReferences"][0]["uid"])
            if key in self._made:
                continue
            try:
                await client.create(JOBS, job)
                log.info("Job %s brings the model to node %s", metadata["name"], _node(job))
            except Exists:
                pass
            except Leaving:
                raise
            except Refused as error:
                log.warning("Job %s/%s cannot be created: %s", *key[:2], error)
            except (Unavailable, NotFound) as error:
                log.warning("Job %s/%s cannot be created now: %s", *key[:2], error)
                continue
            self._made[key] = None
            if len(self._made) > KEPT:
                self._made.popitem(last=False)


def _node(job: Object) -> str:
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return str(term["matchFields"][0]["values"][0])
