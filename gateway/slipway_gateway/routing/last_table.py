"""The last table survives a restart: written beside the process, and used while the API server does not answer.

Its endpoints may be gone or belong to another pod by then, so it is used for a limited time.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_contracts.api.writing import to_json
from slipway_contracts.experiments.assignment import Assignment
from slipway_contracts.gateway_report import TableReport
from slipway_contracts.model_routes.spec import ModelRouteSpec
from slipway_contracts.route_table import refusal

from ..telemetry.metrics import GatewayMetrics
from .experiments import PublishedExperiment
from .public_names import PublicRoute, owner_of
from .table import Problem, RevisionEndpoints, Route, RouteTable, build

log = logging.getLogger(__name__)
FILE = "routes.json"
_VERSION = 1
_WRITE_EVERY_S = 1.0  # the shortest interval between writes
_CHECK_S = 60.0  # how often the age of a restored table is checked at least: the wall clock may be set
# How long the API server has to answer before the stored table is used.
GRACE_S = 10.0

Publish = Callable[[RouteTable | None], None]


class StoredModelRoute(msgspec.Struct):
    """A ModelRoute, with its spec as the API has it."""

    name: str
    spec: dict[str, Any]
    created: str
    granted: list[str]


class StoredExperiment(msgspec.Struct):
    """An Experiment, with its assignment as the API has it."""

    name: str
    uid: str
    created: str
    assignment: dict[str, Any]


class StoredTable(msgspec.Struct):
    """Content of the file. `saved_s`: Unix time of the last contact with the cluster, when it had this state."""

    saved_s: float
    routes: list[Route]
    endpoints: list[RevisionEndpoints]
    owners: dict[str, str]  # of model names
    version: int = _VERSION
    model_routes: list[StoredModelRoute] = []
    experiments: list[StoredExperiment] = []


def encode(table: RouteTable, saved_s: float) -> bytes:
    endpoints = [RevisionEndpoints(route, revision, urls) for (route, revision), urls in table.endpoints.items()]
    owners = {model: route.name for model, route in table.models.items()}
    owners |= {name: owner_of(route.name) for name, route in table.public.items()}
    model_routes = [
        StoredModelRoute(
            route.name,
            route.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
            route.created,
            sorted(route.granted),
        )
        for route in table.model_routes.values()
    ]
    experiments = [
        StoredExperiment(one.name, one.uid, one.created, to_json(one.assignment)) for one in table.experiments.values()
    ]
    routes = list(table.routes.values())
    stored = StoredTable(saved_s, routes, endpoints, owners, model_routes=model_routes, experiments=experiments)
    return msgspec.json.encode(stored)


def decode(written: bytes) -> StoredTable | Problem:
    try:
        stored = msgspec.json.decode(written, type=StoredTable)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Problem(str(error))
    if stored.version != _VERSION:
        return Problem(f"it has version {stored.version}, not {_VERSION}")
    for route in stored.routes:
        if reason := refusal(route):
            return Problem(f"{route.name}: {reason}")
    try:
        public_routes(stored)
        published_experiments(stored)
    except UnreadableObject as error:
        return Problem(str(error))
    return stored


def public_routes(stored: StoredTable) -> list[PublicRoute]:
    """The ModelRoutes of a stored table. Raises UnreadableObject."""
    return [
        PublicRoute(one.name, read(ModelRouteSpec, encoded(one.spec), one.name), one.created, frozenset(one.granted))
        for one in stored.model_routes
    ]


def published_experiments(stored: StoredTable) -> list[PublishedExperiment]:
    """The Experiments of a stored table. Raises UnreadableObject."""
    return [
        PublishedExperiment(one.name, one.uid, one.created, read(Assignment, encoded(one.assignment), one.name))
        for one in stored.experiments
    ]


class LastTable:
    """Passes tables from their source to `publish`, and keeps them in a file.

    Args:
        folder: where the file is; empty: nothing is kept.
        max_age_s: an older table is not used.
        publish: gets each table, the restored one too, and None when that one is too old.
    """

    def __init__(self, folder: str, max_age_s: float, publish: Publish, metrics: GatewayMetrics) -> None:
        self._path = Path(folder) / FILE if folder else None
        self._max_age_s = max_age_s
        self._publish = publish
        self._current: RouteTable | None = None
        self._restored_of_s: float | None = None
        self._dirty = asyncio.Event()
        metrics.restored_age.set_function(lambda: self.age_s or 0.0)

    @property
    def age_s(self) -> float | None:
        """Age in seconds of the restored table in use; None while no restored table is in use."""
        return None if self._restored_of_s is None else max(0.0, time.time() - self._restored_of_s)

    def publish(self, table: RouteTable) -> None:
        """Receives a table from the source. One that equals the last is not passed on: it only gets a later time."""
        if self._restored_of_s is not None:
            log.info("the cluster answers: its table takes the place of the restored one")
        confirmed = table == self._current
        self._restored_of_s, self._current = None, table
        self._dirty.set()
        if not confirmed:
            self._publish(table)

    def report(self) -> TableReport:
        """The field `table` of `/internal/routes`."""
        age_s = self.age_s
        return TableReport(age_s is not None, round(age_s or 0.0, 3))

    async def run(self, grace_s: float = GRACE_S) -> None:
        """Restores the stored table when the source has none after `grace_s`; writes each table of the source."""
        if self._path is None:
            return
        stored = self._read(self._path)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._dirty.wait()
        if self._current is None and stored:
            self._restore(stored)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_expiry_s()):
                    await self._dirty.wait()
            if self._current is None:
                self._expire()
                continue
            self._dirty.clear()
            await asyncio.to_thread(self._write, self._path, self._current)
            await asyncio.sleep(_WRITE_EVERY_S)

    def _until_expiry_s(self) -> float | None:
        """Seconds until the age of a restored table is to be checked; None when there is no such table."""
        return None if self.age_s is None else min(_CHECK_S, max(0.0, self._max_age_s - self.age_s))

    def _restore(self, stored: StoredTable) -> None:
        self._restored_of_s = stored.saved_s
        age_s = round(self.age_s or 0.0)
        log.warning("the API server does not answer: the last table is used", extra={"age_s": age_s})
        self._publish(
            build(
                stored.routes,
                stored.endpoints,
                stored.owners,
                as_of_s=stored.saved_s,
                model_routes=public_routes(stored),
                experiments=published_experiments(stored),
            )
        )

    def _expire(self) -> None:
        if (age_s := self.age_s) is not None and age_s >= self._max_age_s:
            log.error("the restored table is too old: it is used no longer", extra={"age_s": round(age_s)})
            self._restored_of_s = None
            self._publish(None)

    def _read(self, path: Path) -> StoredTable | None:
        try:
            stored = decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            stored = Problem(str(error))
        if not isinstance(stored, Problem) and time.time() - stored.saved_s > self._max_age_s:
            stored = Problem("it is too old")
        if isinstance(stored, Problem):
            log.error("the last table is not used: %s", stored.text, extra={"path": str(path)})
            return None
        return stored

    def _write(self, path: Path, table: RouteTable) -> None:
        """Writes the file whole or not at all, so a reader never sees a part. An error is only logged."""
        made = path.with_suffix(".new")
        try:
            with open(made, "wb") as file:
                file.write(encode(table, table.as_of_s))
                file.flush()
                os.fsync(file.fileno())
            os.replace(made, path)
        except OSError as error:
            log.error("the table is not kept for a restart: %s", error, extra={"path": str(path)})
