"""Why the containers of a pod are not created, or the pods of a group: volumes, devices, runtime; quota, admission.

The kubelet reports it only in Events, and so does the controller of StatefulSets.
"""

import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
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
CREATE_REASONS = frozenset({"FailedCreate"})  # of controllers that cannot create a pod
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
        late = [uid for pod in pods if is_creating(pod) and self._is_late(uid := str(pod["metadata"]["uid"]), now)]
        for uid in late[:MOST_PODS]:
            await self._read(namespace, uid, now, [f"involvedObject.uid={uid}"])
        return {uid: found for uid in late if (found := self._pods[uid].found)}

    async def refusals(self, namespace: str, missing: Mapping[str, Sequence[str]]) -> dict[str, Found]:
        """Return why groups lack pods, by the uid of their LeaderWorkerSet.

        `missing`: by that uid, field selectors of the objects that should create the pods.
        """
        now, found = self._clock(), dict[str, Found]()
        for uid, selectors in missing.items():
            if self._is_late(uid, now):
                await self._read(namespace, uid, now, selectors, CREATE_REASONS)
            if reason := self._pods[uid].found:
                found[uid] = reason
        return found

    def _is_late(self, uid: str, now: float) -> bool:
        known = self._pods.setdefault(uid, _Pod(now, now))
        known.seen = now
        return now - known.since >= PATIENCE_S

    async def _read(
        self, namespace: str, uid: str, now: float, selectors: Sequence[str], reasons: Container[str] = REASONS
    ) -> None:
        pod = self._pods[uid]
        if now - pod.read_at < READ_S:
            return
        pod.read_at = now
        try:
            found = [latest(await self._events(namespace, selector), reasons) for selector in selectors]
            pod.found = next(filter(None, found), None)
        except ApiError as error:  # the operator may have been upgraded before its permissions
            log.debug("events of %s in %s: %s", uid, namespace, error)

    async def _events(self, namespace: str, selector: str) -> list[Object]:
        events: list[Object] = []
        async for page in self._client.pages(EVENTS, namespace, fields=selector):
            events += page.get("items") or ()
            if len(events) >= MOST_EVENTS:
                break
        return events


def latest(events: Iterable[Object], reasons: Container[str] = REASONS) -> Found | None:
    """Return reason and message of the newest Event if it has one of these reasons.

    Otherwise None: a newer Event, such as that of a pulled image, shows that an earlier failure is over.
    """
    newest = max(events, key=_moment, default=None)
    if newest is None or newest.get("reason") not in reasons:
        return None
    return str(newest["reason"]), str(newest.get("message") or newest["reason"]), None


def _moment(event: Object) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")
