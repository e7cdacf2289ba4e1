"""Makes kubelets write a changed file of entries into the pods at once, by an annotation of each pod.

A kubelet writes a ConfigMap into a pod when it syncs that pod: every 60 to 90 seconds, and at once when the pod's
annotations change. Its watch of the ConfigMap renews the cache that a sync reads, but starts no sync: kubernetes.io,
"Configure a Pod to Use a ConfigMap", "Mounted ConfigMaps are updated automatically"; `podsDifferSemantically` in
pkg/kubelet/config/config.go compares annotations, and pkg/kubelet/util/manager/watch_based_manager.go is the cache.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Fenced, NotFound
from slipway_operator.kube.ownership import is_leaving
from slipway_operator.kube.resources import PODS
from slipway_operator.model import labels
from slipway_process.backoff import Backoff

# A sync that reads the cache just before the watch renews it writes the old file. So the annotation is changed again
# later, MAX_AGAIN times; then the kubelet's own period is over.
AGAIN, MAX_AGAIN = Backoff(4.0, 32.0), 4
AT_ONCE = 64  # pods of a pool that are annotated in one look
_MARK = re.compile(r"([0-9a-f]{16})(?:-([0-9]))?")


@dataclass(frozen=True, slots=True)
class SeenMark:
    """The annotation of a pod, and since when this process has seen that value (`time.monotonic`)."""

    mark: str
    since_s: float


Marks = Mapping[str, SeenMark]  # by uid of a pod


def digest(file: str) -> str:
    """Identity of the content of a pool's file: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(file.encode()).hexdigest()[:16]


def seen_marks(pods: Iterable[Object], former: Marks, now_s: float) -> Marks:
    """The marks of these pods by uid; an unchanged mark keeps the time when it was first seen."""
    found: dict[str, SeenMark] = {}
    for pod in pods:
        uid, mark = pod["metadata"]["uid"], _mark(pod)
        before = former.get(uid)
        found[uid] = before if before and before.mark == mark else SeenMark(mark, now_s)
    return found


def next_mark(seen: SeenMark, wanted: str, *, behind: bool, now_s: float) -> str | None:
    """The new value of the pod's annotation; None while the present one may stay.

    `behind`: the pod reports that it lacks an entry, although the annotation names the file that has it.
    """
    matched = _MARK.fullmatch(seen.mark)
    if matched is None or matched[1] != wanted:
        return wanted
    again = int(matched[2] or 0)
    if not behind or again >= MAX_AGAIN or now_s - seen.since_s < AGAIN.delay_s(again + 1):
        return None
    return f"{wanted}-{again + 1}"


async def refresh(
    client: Client, pods: Iterable[Object], marks: Marks, wanted: str, behind: Mapping[str, bool], now_s: float
) -> str:
    """Annotate the pods that need it, AT_ONCE at most.

    Returns why a pod could not be annotated, or an empty string; its kubelet then writes the file a minute later.
    `behind`: by uid of a pod, as `next_mark` has it.
    """
    due: list[tuple[Object, str]] = []
    for pod in pods:
        uid = pod["metadata"]["uid"]
        if is_leaving(pod) or not (pod.get("status") or {}).get("podIP"):
            continue  # a pod without an address: its kubelet still has to mount the volumes anyway
        if mark := next_mark(marks[uid], wanted, behind=behind.get(uid, False), now_s=now_s):
            due.append((pod, mark))
    failed = await asyncio.gather(*(_annotate(client, pod, mark) for pod, mark in due[:AT_ONCE]))
    return next(filter(None, failed), "")


async def _annotate(client: Client, pod: Object, mark: str) -> str:
    metadata = pod["metadata"]
    # With the uid, because a pod of a StatefulSet has the name of its predecessor.
    change = {"metadata": {"uid": metadata["uid"], "annotations": {labels.POOL_ENTRIES: mark}}}
    try:
        await client.patch(PODS, metadata["namespace"], metadata["name"], change)
    except (Fenced, NotFound):
        pass  # another operator does this, or the pod is gone
    except ApiError as error:
        return f"pod {metadata['name']} is not annotated, and may see changes of its entries late: {error}"
    return ""


def _mark(pod: Object) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(labels.POOL_ENTRIES) or "")
