"""The label of the pod whose operator holds the lease: Services select it for what only that one serves."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from slipway_operator.api.objects import Object
from slipway_operator.component import Component
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Fenced, NotFound, Stale
from slipway_operator.kube.resources import PODS
from slipway_operator.model import labels
from slipway_process.supervisor import OnFailure

LOOK_S = 0.5  # until the pod of a new holder has the label
KEEP_S = 30.0  # until a label that another writer changed is as it was

# Labels by which the pods of one release's operator are known, beside the chart's fixed app.kubernetes.io/name.
_OF_RELEASE = (labels.NAME, labels.INSTANCE, labels.COMPONENT)

log = logging.getLogger(__name__)


class LeaderLabel(Component):
    """Keeps the label at this operator's pod while it holds the lease, and takes it from the release's other pods.

    One that lost the lease writes nothing, not even about itself: its successor takes its label. `may_write`: whether
    this operator has the lease.
    """

    task, on_failure = "leader-label", OnFailure.SHOW

    def __init__(self, client: Client, namespace: str, pod: str, may_write: Callable[[], bool]) -> None:
        self._client, self._namespace, self._pod, self._may_write = client, namespace, pod, may_write
        self._is_set = False
        self._trouble = ""

    def reset(self) -> None:
        """Look again at once: another operator has, or had, the label."""
        self._is_set = False

    async def run(self) -> None:
        """Set the label soon after the lease was acquired, and look every KEEP_S, until cancelled."""
        looked_at = float("-inf")
        clock = asyncio.get_running_loop().time
        while True:
            if self._may_write() and not (self._is_set and clock() - looked_at < KEEP_S):
                looked_at = clock()
                await self._try()
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """Take the label from the own pod before the lease is released."""
        if self._may_write():
            with contextlib.suppress(ApiError):
                await self._mark(await self._client.get(PODS, self._namespace, self._pod), None)

    async def look(self) -> None:
        """Set the label at the own pod, then take it from others of the release.

        Raises:
            ApiError: when pods cannot be read or written.
        """
        own = await self._client.get(PODS, self._namespace, self._pod)
        marks = own["metadata"].get("labels") or {}
        if marks.get(labels.LEADER) != labels.IS_LEADER:
            await self._mark(own, labels.IS_LEADER)
        release = [f"{name}={marks[name]}" for name in _OF_RELEASE if name in marks]
        selector = ",".join([f"{labels.LEADER}={labels.IS_LEADER}", *release])
        for pod in await self._client.list(PODS, self._namespace, selector):
            if pod["metadata"]["uid"] != own["metadata"]["uid"]:
                with contextlib.suppress(NotFound, Stale):  # gone, or another pod of its name
                    await self._mark(pod, None)

    async def _try(self) -> None:
        try:
            await self.look()
            self._is_set, self._trouble = True, ""
        except Fenced:
            pass  # another operator has the lease and does this
        except ApiError as error:
            if str(error) != self._trouble:
                log.warning("Services may not find the operator that holds the lease: %s", error)
            self._trouble = str(error)

    async def _mark(self, pod: Object, value: str | None) -> None:
        metadata = pod["metadata"]
        change = {"metadata": {"uid": metadata["uid"], "labels": {labels.LEADER: value}}}
        await self._client.patch(PODS, self._namespace, metadata["name"], change)
