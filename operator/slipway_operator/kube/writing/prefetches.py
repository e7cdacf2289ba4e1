"""Creates the Jobs that bring models to nodes. Without them pods download by themselves, so nothing waits for them."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Exists, Fenced, Leaving, NotFound, Refused, Unavailable
from slipway_operator.kube.resources import JOBS
from slipway_operator.model.cluster.downloads import CACHED, FAILED, FETCHING
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Plan, Prefetch
from slipway_process.fair_memory import FairMemory

KEPT = 8192  # Jobs that are known to have been created; beyond it the namespace with most forgets its oldest
READ_EVERY_S = 10.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _CreatedJob:
    """A Job that was created, or refused; its state as it was read last."""

    state: str | None = None
    read_at: float = float("-inf")


class Prefetches(Component):
    """Creates each Job once: neither a Job that was deleted after its end nor a refused one is created again."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._made: FairMemory[str, tuple[str, str], _CreatedJob] = FairMemory(KEPT)  # by namespace
        self._states: dict[ObjectKey, dict[tuple[str, str], str]] = {}

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with the states of the Jobs."""
        return replace(observed, prefetches=self.states(deployment.key))

    async def before(self, deployment: ReconciledDeployment, planned: Plan) -> None:
        """Create the plan's Jobs."""
        await self.start(deployment.key, planned.prefetch)

    async def start(self, key: ObjectKey, wanted: Sequence[Prefetch]) -> None:
        """Create the Jobs of a ModelDeployment that are missing, and read the others; what fails is logged.

        Raises:
            Leaving: when the namespace is being deleted.
            Fenced: when this process may not write.
        """
        states = {}
        for prefetch in wanted:
            made = await self._read(prefetch.job) or await self._create(prefetch)
            if made and made.state:
                states[prefetch.revision, prefetch.node] = made.state
        self.forget(key)
        if states:
            self._states[key] = states

    def states(self, key: ObjectKey) -> dict[tuple[str, str], str]:
        """Return the states of the Jobs that were wanted last, by revision and node."""
        return self._states.get(key, {})

    def forget(self, key: ObjectKey) -> None:
        """Drop the states of a ModelDeployment."""
        self._states.pop(key, None)

    async def _read(self, job: Object) -> _CreatedJob | None:
        """Return what is known of a Job, None if it was not created; a running one is read every READ_EVERY_S."""
        made, now = self._made.get(job["metadata"]["namespace"], _key(job)), self._clock()
        if made is None or made.state != FETCHING or now - made.read_at < READ_EVERY_S:
            return made
        made.read_at = now
        try:
            made.state = _state(await self._client.get(JOBS, job["metadata"]["namespace"], job["metadata"]["name"]))
        except NotFound:
            made.state = None  # deleted: nothing is known of it any more
        except Fenced:
            raise
        except ApiError as error:
            log.debug("Job %s cannot be read: %s", job["metadata"]["name"], error)
        return made

    async def _create(self, prefetch: Prefetch) -> _CreatedJob | None:
        job, made = prefetch.job, _CreatedJob(FETCHING)
        metadata = job["metadata"]
        try:
            await self._client.create(JOBS, job)
            made.read_at = self._clock()
            log.info("Job %s brings the model to node %s", metadata["name"], prefetch.node)
        except Exists:
            pass
        except Leaving:
            raise
        except Refused as error:
            made.state = None
            log.warning("Job %s/%s cannot be created: %s", metadata["namespace"], metadata["name"], error)
        except (Unavailable, NotFound) as error:
            log.warning("Job %s/%s cannot be created now: %s", metadata["namespace"], metadata["name"], error)
            return None
        self._made.put(metadata["namespace"], _key(job), made)
        return made


def _key(job: Object) -> tuple[str, str]:
    metadata = job["metadata"]
    return metadata["name"], metadata["ownerReferences"][0]["uid"]


def _state(job: Object) -> str:
    conditions = (job.get("status") or {}).get("conditions") or ()
    true = {item.get("type") for item in conditions if item.get("status") == "True"}
    return CACHED if "Complete" in true else FAILED if "Failed" in true else FETCHING
