"""The AnalysisRuns of ModelDeployments: read before a plan, written before the status that names them, and deleted."""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import Exists, Leaving, NotFound, Refused, Stale
from slipway_operator.kube.ownership import is_controlled_by
from slipway_operator.kube.resources import ANALYSIS_RUNS
from slipway_operator.manifests.analysis_run import RunTooLarge, analysis_run
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.analysis.stored_run import FIELDS, RunWrite, StoredRun, stored_run

LONGEST_NAME = 253
NO_CRD = "the API server does not know analysisruns.slipway.dev: install crds/analysisruns.yaml"

log = logging.getLogger(__name__)


class RunRefused(Exception):
    """An AnalysisRun cannot be written; the message is for the user."""


class AnalysisRuns:
    """Reads and writes runs. It remembers what this process wrote last, to know its own writes from those of others."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._written: dict[ObjectKey, dict[str, Object]] = {}  # `status` by name of the run

    async def read(self, obj: Object) -> dict[str, StoredRun]:
        """Return the runs that the status names, by name; those that do not exist are left out."""
        metadata = obj["metadata"]
        key, names = (metadata["namespace"], metadata["name"]), tuple(dict.fromkeys(_named(obj)))
        runs = await asyncio.gather(*(self._read(key, name) for name in names))
        return {run.name: run for run in runs if run}

    async def write(self, obj: Object, writes: Iterable[RunWrite]) -> dict[str, str]:
        """Write runs; returns the UIDs of those that were created, by name.

        Raises:
            RunRefused: when the kind is not installed, or quota, admission or permissions forbid it.
            Stale: when a run changed since it was read, or another object has its name: what is planned next differs.
            Leaving: when the namespace is being deleted.
        """
        uids = {}
        for item in writes:
            try:
                live = await self._write(obj, item)
            except Leaving:
                raise
            except Refused as error:
                raise RunRefused(f"AnalysisRun {item.name} cannot be written: {error.message}") from error
            except RunTooLarge as error:
                raise RunRefused(f"AnalysisRun {item.name} cannot be written: {error}") from error
            uids[item.name] = live["metadata"]["uid"]
        return uids

    def forget(self, key: ObjectKey) -> None:
        self._written.pop(key, None)

    async def _read(self, key: ObjectKey, name: str) -> StoredRun | None:
        try:
            obj = await self._client.get(ANALYSIS_RUNS, key[0], name)
        except (NotFound, Refused):  # without a permission it cannot be written either: the user is shown that
            return None
        run = stored_run(obj)
        written = self._written.get(key, {}).get(name)
        return replace(run, ours=written is not None and written == obj.get("status")) if run else None

    async def _write(self, obj: Object, item: RunWrite) -> Object:
        owner, metadata = Owner.of(obj), obj["metadata"]
        manifest = analysis_run(owner, item.name, item.run)
        self._remember((metadata["namespace"], metadata["name"]), item.name, manifest["status"])
        if item.former is None:
            return await self._create(owner, manifest)
        identity = {"uid": item.former.uid, "resourceVersion": item.former.version}
        try:
            return await self._client.replace(ANALYSIS_RUNS, manifest | {"metadata": manifest["metadata"] | identity})
        except NotFound as error:
            raise Stale(str(error)) from error

    async def _create(self, owner: Owner, manifest: Object) -> Object:
        namespace, name = owner.namespace, manifest["metadata"]["name"]
        try:
            return await self._client.create(ANALYSIS_RUNS, manifest)
        except NotFound as error:
            if await self._client.serves_kind(ANALYSIS_RUNS):
                raise Stale(str(error)) from error  # the namespace is gone, or not known yet
            raise RunRefused(NO_CRD) from error
        except Exists as error:
            # The response to our own request was lost; an object of another writer has another content.
            live = await self._client.get(ANALYSIS_RUNS, namespace, name)
            if is_controlled_by(live, owner.uid) and live.get("status") == manifest["status"]:
                return live
            raise Stale(str(error)) from error

    def _remember(self, key: ObjectKey, name: str, status: Object) -> None:
        """Keep what is written of the analyses of one step alone."""
        written = self._written.setdefault(key, {})
        written[name] = status
        for former in list(written)[: -len(FIELDS)]:
            del written[former]


def _named(obj: Object) -> Iterator[str]:
    """Names of the runs in a status, which any writer of it may have filled with anything."""
    rollout: Any = (obj.get("status") or {}).get("rollout")
    for field in FIELDS:
        reference = rollout.get(field) if isinstance(rollout, dict) else None
        name = reference.get("run") if isinstance(reference, dict) else None
        if isinstance(name, str) and 0 < len(name) <= LONGEST_NAME:
            yield name
