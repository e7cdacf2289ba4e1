"""What a page about one deployment reads, with the viewer's token: a part that may not be read becomes a note."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from slipway_cli.api import MODEL_DEPLOYMENT_LABEL, Json
from slipway_cli.objects import history, lease
from slipway_cli.objects.deployment import Deployment, read_deployment
from slipway_cli.objects.history import RevisionRecord
from slipway_cli.views.analysis import list_runs
from slipway_cli.views.status import View, build_view
from slipway_console.access.api_server import ApiServer, Viewer
from slipway_console.access.refusal import ApiRefusal, Call, SignedOut
from slipway_console.views.accuracy import Watched, read_accuracy
from slipway_console.views.changes import Change, read_changes
from slipway_console.views.evidence import Evidence, read_evidence
from slipway_console.views.table import Listing, read_table

T = TypeVar("T")

DEPLOYMENTS, RUNS = "modeldeployments.slipway.dev", "analysisruns.slipway.dev"
RUN_COLUMNS = ("Run", "Template", "Outcome", "Reason", "Age")
MOST_EVENTS = 500  # the API server has the oldest first
MOST_OBJECTS = 50


@dataclass(frozen=True, slots=True)
class Subject:
    """A deployment with all that its page shows."""

    of: Deployment
    view: View
    records: tuple[RevisionRecord, ...]
    conditions: tuple[Json, ...]
    intents: tuple[tuple[str, str], ...]  # spec.rollout, as field and value
    evidence: tuple[Evidence, ...]
    accuracy: tuple[Watched, ...]
    former: Listing
    changes: tuple[Change, ...]
    may_patch: bool


class SubjectReader:
    """Reads one deployment and the objects around it, in at most ten calls."""

    def __init__(self, api: ApiServer, viewer: Viewer, namespace: str, name: str) -> None:
        self._api, self._viewer, self._namespace, self._name = api, viewer, namespace, name
        self._notes: list[str] = []

    async def deployment(self) -> Json:
        """The object alone. Raises ApiRefusal."""
        return await self._api.get(self._viewer, self._call("get", DEPLOYMENTS, self._name))

    async def version(self) -> str:
        """That of the object: it changes with every write. Raises ApiRefusal."""
        return resource_version(await self._api.metadata(self._viewer, self._call("get", DEPLOYMENTS, self._name)))

    async def records(self, obj: Json) -> tuple[RevisionRecord, ...]:
        """The revisions that undo may go to. Raises ApiRefusal."""
        found = await self._labelled("controllerrevisions.apps")
        return tuple(history.read_records(found, obj["metadata"]["uid"]))

    async def run(self, name: str) -> Evidence:
        """One AnalysisRun of the deployment. Raises ApiRefusal: also for a run of another deployment."""
        run = await self._api.get(self._viewer, self._call("get", RUNS, name))
        found = read_evidence(run)
        if found.subject != self._name:
            raise ApiRefusal(404, f"The AnalysisRun {name} is about {found.subject}, not about {self._name}.")
        return found

    async def read(self, obj: Json, now: datetime) -> Subject:
        """All around the object. Raises SignedOut."""
        self._notes.clear()
        of, uid = read_deployment(obj), obj["metadata"]["uid"]
        names = list_runs(obj)
        patch = self._call("patch", DEPLOYMENTS, self._name)
        (pods, events, records), (former, outdated, may_patch), runs = await asyncio.gather(
            asyncio.gather(
                self._or("its pods", self._labelled("pods"), []),
                self._or("Events about it", self._events(uid), []),
                self._or("its former revisions", self.records(obj), ()),
            ),
            asyncio.gather(
                self._or("its analyses", self._former(), Listing((), (), "", None)),
                self._outdated(obj, now),
                self._or("your rights", self._api.may(self._viewer, patch), False),
            ),
            asyncio.gather(*(self._or(f"the AnalysisRun {name}", self._run(name), None) for name in names)),
        )
        there = [run for run in runs if run]
        return Subject(
            of=of,
            view=build_view(obj, pods, events, now, self._notes, outdated=outdated, runs=there),
            records=records,
            conditions=tuple(item for item in of.status.get("conditions") or () if isinstance(item, dict)),
            intents=tuple((str(name), str(value)) for name, value in of.intents.items() if value is not None),
            evidence=tuple(map(read_evidence, there)),
            accuracy=read_accuracy(obj),
            former=former,
            changes=read_changes(obj),
            may_patch=may_patch,
        )

    def _call(self, verb: str, resource: str, name: str = "") -> Call:
        return Call(verb, resource, self._namespace, name)

    async def _run(self, name: str) -> Json:
        return await self._api.get(self._viewer, self._call("get", RUNS, name))

    async def _labelled(self, resource: str) -> list[Json]:
        selector = f"{MODEL_DEPLOYMENT_LABEL}={self._name}"
        found = await self._api.list(self._viewer, self._call("list", resource), MOST_OBJECTS, labelSelector=selector)
        return list(found.get("items") or ())

    async def _events(self, uid: str) -> list[Json]:
        found = await self._api.list(
            self._viewer, self._call("list", "events"), MOST_EVENTS, fieldSelector=f"involvedObject.uid={uid}"
        )
        return list(found.get("items") or ())

    async def _former(self) -> Listing:
        selector = f"{MODEL_DEPLOYMENT_LABEL}={self._name}"
        table = await self._api.table(self._viewer, self._call("list", RUNS), labelSelector=selector)
        return read_table(table, RUN_COLUMNS)

    async def _outdated(self, obj: Json, now: datetime) -> str | None:
        """Why the status is not kept up to date; None while an operator runs, and where that may not be read."""
        where = lease.parse_place(obj)
        if where is None:
            return None
        try:
            found = await self._api.get(self._viewer, Call("get", "leases.coordination.k8s.io", *where))
        except SignedOut:
            raise
        except ApiRefusal as refusal:
            return lease.find_outage(where, None, now) if refusal.status == 404 else None
        return lease.find_outage(where, found, now)

    async def _or(self, what: str, found: Awaitable[T], otherwise: T) -> T:
        try:
            return await found
        except SignedOut:
            raise
        except ApiRefusal as refusal:
            self._notes.append(f"This page lacks {what}. {refusal.sentence}")
            return otherwise


def resource_version(obj: Json) -> str:
    """That of the object: it changes with every write."""
    return str(obj["metadata"].get("resourceVersion") or "")
