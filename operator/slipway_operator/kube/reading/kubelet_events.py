"""Why the containers of a pod are not created: volumes, devices, network or runtime.

The kubelet reports it only in Events.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError
from slipway_operator.kube.reading.pod_trouble import Found, is_creating
from slipway_operator.kube.resources import EVENTS

REASONS = frozenset(
    {
        *("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedPrepareDynamicResources"),
        "FailedResourceClaimCreation",  # from the ResourceClaim controller; the scheduler emits none
    }
)
PATIENCE_S = 5.0  # most pods have their containers by then
READ_S = 4.0  # Events of one pod are read at most this often
MOST_PODS = 2  # read for one ModelDeployment: pods of one revision wait for the same thing
MOST_EVENTS = 1000  # read for one pod: users who may create Events can create many about it
_KEPT_S = 300.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pod:
    since: float  # when it was first seen without containers
    seen: float
    read_at: float = float("-inf")
    found: Found | None = None


class KubeletEvents:
    """Reads Events of pods that have no container for a while. Keeps an entry for each such pod."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._pods: dict[str, _Pod] = {}  # by uid

    async def failures(self, namespace: str, pods: Iterable[Object]) -> dict[str, Found]:
        """Return why pods have no containers, by uid; one call reads the Events of at most MOST_PODS pods."""
        now = self._clock()
        self._pods = {uid: pod for uid, pod in self._pods.items() if now - pod.seen < _KEPT_S}
        late = [str(pod["metadata"]["uid"]) for pod in pods if is_creating(pod) and self._is_late(pod, now)]
        for uid in late[:MOST_PODS]:
            await self._read(namespace, uid, now)
        return {uid: found for uid in late if (found := self._pods[uid].found)}

    def _is_late(self, pod: Object, now: float) -> bool:
        known = self._pods.setdefault(str(pod["metadata"]["uid"]), _Pod(now, now))
        known.seen = now
        return now - known.since >= PATIENCE_S

    async def _read(self, namespace: str, uid: str, now: float) -> None:
        pod = self._pods[uid]
        if now - pod.read_at < READ_S:
            return
        pod.read_at = now
        try:
            pod.found = latest(await self._events(namespace, uid))
        except ApiError as error:  # the operator may have been upgraded before its permissions
            log.debug("events of pod %s in %s: %s", uid, namespace, error)

    async def _events(self, namespace: str, uid: str) -> list[Object]:
        events: list[Object] = []
        async for page in self._client.pages(EVENTS, namespace, fields=f"involvedObject.uid={uid}"):
            events += page.get("items") or ()
            if len(events) >= MOST_EVENTS:
                break
        return events


def latest(events: Iterable[Object]) -> Found | None:
    """Return reason and message of the newest Event if it says why there are no containers.

    Otherwise None: a newer Event, such as that of a pulled image, shows that an earlier failure is over.
    """
    newest = max(events, key=_moment, default=None)
    if newest is None or newest.get("reason") not in REASONS:
        return None
    return str(newest["reason"]), str(newest.get("message") or newest["reason"]), None


def _moment(event: Object) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")
