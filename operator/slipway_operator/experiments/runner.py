"""Looks at all Experiments: publishes what gateways are to follow, and writes what they counted at a bounded rate."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import aiohttp

from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_contracts.api.writing import to_json
from slipway_contracts.experiments.assignment import Assignment
from slipway_contracts.experiments.report import ExperimentsReport, read_report
from slipway_contracts.experiments.spec import ExperimentSpec, refusal
from slipway_contracts.model_routes.spec import ModelRouteSpec
from slipway_operator.api.fitting import fitted
from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.api.v1alpha1.experiment import ExperimentStatus
from slipway_operator.component import Component
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Fenced, NotFound, Refused, Stale
from slipway_operator.kube.reading.gateway_pages import read_pages
from slipway_operator.kube.reading.gateways import Gateways
from slipway_operator.kube.resources import EXPERIMENTS, MODEL_ROUTES
from slipway_operator.kube.writing import events
from slipway_operator.planning import experiment_counts, experiments
from slipway_operator.planning.experiment_counts import Counted
from slipway_operator.planning.experiments import DeploymentFacts, ExperimentWorld, Problem
from slipway_process.supervisor import OnFailure

LOOK_S, ABSENT_S = 2.0, 60.0
PAUSE_SHARE = 9  # pause, in multiples of the time that a look took
TURN = 16  # Experiments after which other tasks have their turn
WRITES = 50  # of a status in one look; the others wait for the next one
COUNTS_EACH_S = 20.0  # between two readings of what gateways counted, and two writes of it

_NEVER = datetime.min.replace(tzinfo=UTC)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deployments:
    """Where ModelDeployments are known. `listed`: keys of those that are served."""

    listed: Callable[[], Iterable[ObjectKey]]
    get: Callable[[ObjectKey], Object | None]


class ExperimentRunner(Component):
    """Keeps the status of all Experiments up to date. `may_write`: whether this operator has the lease."""

    task, on_failure = "experiments", OnFailure.SHOW

    def __init__(
        self,
        client: Client,
        namespaces: Sequence[str],
        deployments: Deployments,
        gateways: Gateways,
        session: aiohttp.ClientSession,
        may_write: Callable[[], bool],
        now: Callable[[], datetime],
    ) -> None:
        """`namespaces`: those that are served; empty: all."""
        self._client, self._namespaces, self._deployments = client, tuple(namespaces) or (None,), deployments
        self._gateways, self._session = gateways, session
        self._may_write, self._now = may_write, now
        self._counted_at = _NEVER
        self._trouble = ""

    async def run(self) -> None:
        """Look every LOOK_S until cancelled."""
        while True:
            pause_s, began_s = LOOK_S, time.monotonic()
            try:
                if self._may_write():
                    await self.look()
                self._trouble = ""
            except (NotFound, Refused) as error:
                pause_s = ABSENT_S  # the CRD, or the right to read it, is missing
                self._warn(error)
            except Fenced:
                pass  # another operator has the lease and does this
            except ApiError as error:
                self._warn(error)
            await asyncio.sleep(max(pause_s, PAUSE_SHARE * (time.monotonic() - began_s)))

    async def look(self) -> None:
        """Read all Experiments; write each status that is due, with an Event for each change.

        Raises:
            ApiError: Experiments, ModelRoutes or gateways cannot be read, or no status can be written.
        """
        found = await self._list(EXPERIMENTS)
        if not found:
            return
        statuses = {name: _former(obj) for name, obj in found.items()}
        published = {name: one.assignment for name, one in statuses.items() if one.assignment is not None}
        world = ExperimentWorld(self._facts(), await self._routes(), published)
        reports = await self._reports()
        written = 0
        # The oldest come first: of two that want the same units it has them.
        for number, (name, obj) in enumerate(sorted(found.items(), key=lambda one: (_created(one[1]), one[0]))):
            if number % TURN == 0:
                await asyncio.sleep(0)
            former = statuses[name]
            proposal = _proposal(name, obj, world, self._now())
            if isinstance(proposal, Assignment):
                published[name] = proposal  # those after it must leave its units
            fresh = self._status(name, obj, proposal, former, reports)
            if fresh != former and written < WRITES:
                written += 1
                await self._write(obj, former, fresh)

    def _status(
        self,
        name: str,
        obj: Object,
        proposal: Assignment | Problem,
        former: ExperimentStatus,
        reports: Sequence[ExperimentsReport] | None,
    ) -> ExperimentStatus:
        generation = obj["metadata"].get("generation", 0)
        followed = former.assignment if isinstance(proposal, Problem) else proposal
        counted = Counted()
        if followed is not None:
            is_same = former.assignment is not None and former.assignment.version == followed.version
            gateways = former.gateways if is_same else ()
            uid = obj["metadata"].get("uid") or ""
            counted = experiment_counts.count(name, uid, followed, gateways, reports or ())
            if reports is None:
                counted = replace(counted, lost=former.lost)
        return experiments.status(generation, proposal, counted, former, self._now())

    def _facts(self) -> Mapping[str, DeploymentFacts]:
        listed = ((key, self._deployments.get(key)) for key in self._deployments.listed())
        return {"/".join(key): _facts_of(obj) for key, obj in listed if obj is not None}

    async def _routes(self) -> Mapping[str, ModelRouteSpec]:
        """ModelRoutes that can be read; none without their CRD."""
        try:
            found = await self._list(MODEL_ROUTES)
        except (NotFound, Refused):
            return {}
        routes = {}
        for number, (name, obj) in enumerate(found.items()):
            if number % TURN == 0:
                await asyncio.sleep(0)
            try:
                routes[name] = read(ModelRouteSpec, encoded(obj.get("spec") or {}), "spec")
            except UnreadableObject:
                continue  # its own status says so
        return routes

    async def _reports(self) -> Sequence[ExperimentsReport] | None:
        """What gateways counted; None: it is not due, and the last counts stay."""
        now = self._now()
        if (now - self._counted_at).total_seconds() < COUNTS_EACH_S:
            return None
        self._counted_at = now
        reports, _ = await read_pages(self._gateways, self._session, "/internal/experiments", read_report)
        return reports

    async def _list(self, resource: Any) -> dict[str, Object]:
        lists = [await self._client.list(resource, namespace, cached=True) for namespace in self._namespaces]
        return {_name(obj): obj for objects in lists for obj in objects}

    async def _write(self, listed: Object, former: ExperimentStatus, fresh: ExperimentStatus) -> None:
        obj = {"apiVersion": EXPERIMENTS.api_version, "kind": EXPERIMENTS.kind, **listed}
        try:
            await self._client.put_status(EXPERIMENTS, {**obj, "status": fitted(ExperimentStatus, to_json(fresh))})
        except (Stale, NotFound):
            return  # the next look reads it again
        await events.post_all(self._client, obj, experiments.events(former, fresh), self._now())

    def _warn(self, error: Exception) -> None:
        if str(error) != self._trouble:
            log.warning("the status of Experiments is not written: %s", error)
        self._trouble = str(error)


def _proposal(name: str, obj: Object, world: ExperimentWorld, now: datetime) -> Assignment | Problem:
    try:
        spec = read(ExperimentSpec, encoded(obj.get("spec") or {}), "spec")
    except UnreadableObject as error:
        return Problem(experiments.ACCEPTED, experiments.INVALID, str(error))
    if problem := refusal(spec):
        return Problem(experiments.ACCEPTED, experiments.INVALID, f"spec.{problem}")
    return experiments.propose(name, obj["metadata"].get("generation", 0), spec, world, now)


def _facts_of(obj: Object) -> DeploymentFacts:
    """The model's name, and what may serve it, by the table that gateways have."""
    spec, traffic = _part(obj, "spec"), _part(_part(obj, "status"), "traffic")
    model = _part(spec, "model").get("name") or obj["metadata"]["name"]
    backends = [one for one in traffic.get("backends") or () if isinstance(one, Mapping)]
    names = (one.get(field) for one in backends for field in ("revision", "version"))
    return DeploymentFacts(str(traffic.get("model") or model), frozenset(str(name) for name in names if name))


def _part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = whole.get(name)
    return part if isinstance(part, Mapping) else {}


def _name(obj: Object) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _created(obj: Object) -> str:
    return obj["metadata"].get("creationTimestamp") or ""


def _former(obj: Object) -> ExperimentStatus:
    """The status in the object; an empty one where it cannot be read."""
    try:
        return read(ExperimentStatus, encoded(obj.get("status") or {}))
    except UnreadableObject:
        return ExperimentStatus()
