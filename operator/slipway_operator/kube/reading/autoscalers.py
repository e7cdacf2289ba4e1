"""The HorizontalPodAutoscalers of a namespace by their targets: ours, users' and KEDA's."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from slipway_contracts.api.times import parse_time
from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import Refused
from slipway_operator.kube.ownership import is_controlled, is_controlled_by
from slipway_operator.kube.resources import AUTOSCALERS
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Autoscaler, ScalerCondition

CACHE_S = 1.0
_SCALED_OBJECT = "scaledobject.keda.sh/name"
_MOST = 8  # autoscalers that are reported for one ModelDeployment; two are too many already


@dataclass(slots=True)
class _Shelf:
    """The autoscalers of one namespace, by name of their ModelDeployment."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    fresh_until: float = float("-inf")
    found: dict[str, list[Object]] = field(default_factory=dict)


class Autoscalers:
    """Lists a namespace once for concurrent reconciles. Foreign autoscalers lack our labels, so all are listed."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._shelves: dict[str, _Shelf] = {}  # by namespace

    async def of(self, obj: Object) -> tuple[Autoscaler, ...]:
        """Return the autoscalers that scale a ModelDeployment, and one with another target but the name of ours."""
        metadata = obj["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        items = (await self._found(metadata["namespace"])).get(name, [])
        return tuple(_read(item, name, uid) for item in items)

    def forget(self, namespace: str) -> None:
        """Invalidate the list of a namespace where an autoscaler changed, also a list request in progress."""
        if shelf := self._shelves.get(namespace):
            shelf.fresh_until = float("-inf")

    async def _found(self, namespace: str) -> dict[str, list[Object]]:
        shelf = self._shelves.setdefault(namespace, _Shelf())
        async with shelf.lock:
            if self._clock() >= shelf.fresh_until:
                # Set before the request, so that `forget` during it invalidates the response.
                shelf.fresh_until = self._clock() + CACHE_S
                try:
                    shelf.found = await self._list(namespace)
                except BaseException:
                    shelf.fresh_until = float("-inf")
                    raise
            return shelf.found

    async def _list(self, namespace: str) -> dict[str, list[Object]]:
        found: dict[str, list[Object]] = {}
        try:
            async for page in self._client.pages(AUTOSCALERS, namespace, cached=True):
                for item in page.get("items") or ():
                    _add(found, item)
        except Refused:  # the operator was upgraded before its permissions
            return {}
        return found


def _add(found: dict[str, list[Object]], item: Object) -> None:
    if item["metadata"].get("deletionTimestamp"):
        return
    for name in about(item):
        same = found.setdefault(name, [])
        if len(same) < _MOST:
            same.append(item)


def about(item: Object) -> set[str]:
    """Return the ModelDeployments that an autoscaler concerns: its target, and the one that it is named after."""
    target = target_of(item)
    taken = item["metadata"]["name"].removesuffix(labels.autoscaler_name(""))
    return {name for name in (target, taken if taken != item["metadata"]["name"] else "") if name}


def target_of(item: Object) -> str:
    """Return the name of the ModelDeployment that an autoscaler scales; empty when it scales something else."""
    target = (item.get("spec") or {}).get("scaleTargetRef") or {}
    group = str(target.get("apiVersion", "")).partition("/")[0]
    return str(target.get("name", "")) if (group, target.get("kind")) == (labels.GROUP, labels.KIND) else ""


def _is_orphan(item: Object, name: str) -> bool:
    """Whether an autoscaler was ours and lost its controller reference: we adopt such an object, as controllers do."""
    metadata = item["metadata"]
    found = metadata.get("labels") or {}
    marks = (found.get(labels.MODEL_DEPLOYMENT), found.get(labels.MANAGED_BY))
    return metadata["name"] == labels.autoscaler_name(name) and marks == (name, "slipway") and not is_controlled(item)


def _read(item: Object, name: str, uid: str) -> Autoscaler:
    metadata = item["metadata"]
    conditions = (item.get("status") or {}).get("conditions") or ()
    return Autoscaler(
        name=metadata["name"],
        ours=is_controlled_by(item, uid),
        orphan=_is_orphan(item, name),
        aims_here=target_of(item) == name,
        created_at=parse_time(metadata["creationTimestamp"]),
        spec=item.get("spec") or {},
        conditions=tuple(
            ScalerCondition(one["type"], one["status"], one.get("reason") or "", one.get("message") or "")
            for one in conditions
        ),
        scaled_object=(metadata.get("labels") or {}).get(_SCALED_OBJECT, ""),
    )
