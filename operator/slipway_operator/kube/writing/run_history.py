"""Deletes former AnalysisRuns of a ModelDeployment beyond the limits of its spec, when another one begins."""

import logging
from collections.abc import Iterable, Iterator

from slipway_operator.api.objects import Object
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Leaving, NotFound
from slipway_operator.kube.ownership import is_controlled_by, is_leaving
from slipway_operator.kube.resources import ANALYSIS_RUNS
from slipway_operator.model import labels
from slipway_operator.model.analysis.stored_run import FIELDS
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.model.deployment.spec import Invalid

PASSED = "Pass"

log = logging.getLogger(__name__)


class RunHistory(Component):
    """Keeps the newest runs that passed, the newest of all others, and those that the status names."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def before(self, deployment: ReconciledDeployment, planned: Plan) -> None:
        """Delete runs after another one was created. A failure is logged: the next beginning deletes more."""
        if isinstance(deployment.spec, Invalid) or all(item.former for item in planned.runs):
            return
        namespace, name = deployment.key
        limits = deployment.spec.run_history
        try:
            runs = await self._client.metadata(ANALYSIS_RUNS, namespace, labels.selector(name))
            named = {*_named(deployment.obj), *(item.name for item in planned.runs)}
            for item in surplus(_of(runs, deployment.obj["metadata"]["uid"], named), limits):
                await self._delete(namespace, item["metadata"])
        except Leaving:
            raise
        except ApiError as error:
            log.warning("former AnalysisRuns are not deleted: %s", error)

    async def _delete(self, namespace: str, metadata: Object) -> None:
        try:
            await self._client.delete(ANALYSIS_RUNS, namespace, metadata["name"], metadata["uid"])
        except NotFound:
            return


def surplus(runs: Iterable[Object], limits: tuple[int, int]) -> list[Object]:
    """The oldest runs beyond `limits`: of those that passed, and of all others."""
    newest = sorted(runs, key=lambda item: (item["metadata"]["creationTimestamp"], item["metadata"]["name"]))[::-1]
    passed = [item for item in newest if _outcome(item) == PASSED]
    others = [item for item in newest if _outcome(item) != PASSED]
    return [*passed[limits[0] :], *others[limits[1] :]]


def _outcome(item: Object) -> str:
    return str((item["metadata"].get("labels") or {}).get(labels.ANALYSIS_OUTCOME) or "")


def _of(runs: Iterable[Object], uid: str, named: set[str]) -> Iterator[Object]:
    """Those of the ModelDeployment with this UID that no status names."""
    for item in runs:
        if is_controlled_by(item, uid) and not is_leaving(item) and item["metadata"]["name"] not in named:
            yield item


def _named(obj: Object) -> Iterator[str]:
    rollout = (obj.get("status") or {}).get("rollout") or {}
    return (str(reference.get("run")) for field in FIELDS if (reference := rollout.get(field)))
