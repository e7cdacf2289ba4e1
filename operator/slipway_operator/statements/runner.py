"""Signs the statement about each verdict and writes it to the revision's ControllerRevision, in the background.

What a statement says is fixed in the pass that made the decision, from what the decision was made of. No rollout waits
for a signature: without a key there is an Event, and the statement is tried again.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from slipway_contracts.verdict_statements import ANNOTATION, PAYLOAD_TYPE
from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Fenced, Leaving, NotFound
from slipway_operator.kube.resources import CONTROLLER_REVISIONS
from slipway_operator.kube.writing import events
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Event, Plan
from slipway_operator.model.deployment import status
from slipway_operator.planning.facts.verdicts import RevisionVerdict, is_stated, verdicts
from slipway_operator.planning.statement import Decided, NothingPinned, statement
from slipway_process import dsse
from slipway_process.supervisor import OnFailure

IDLE_S = 1.0
AGAIN_S = 60.0  # after a failure: a Secret that is written again reaches the pod within a minute or two

log = logging.getLogger(__name__)


class KeyUnreadable(Exception):
    """The signing key cannot be used; the message has no part of it."""


@dataclass(slots=True)
class _Pending:
    """A statement that is not written yet. `payload` is None where there is nothing to sign."""

    obj: Object
    verdict: RevisionVerdict
    record: str  # name of the ControllerRevision
    payload: bytes | None
    problem: str = ""  # why there is nothing to sign
    due_at: float = 0.0
    reported: str = ""  # the last failure that became an Event


class StatementRunner(Component):
    """Signs verdicts by the key in a file, which is read for each one: a new key needs no restart."""

    task, on_failure = "statements", OnFailure.SHOW

    def __init__(
        self,
        client: Client,
        key_file: Path,
        version: str,
        wake: Callable[[ObjectKey], None],
        may_write: Callable[[], bool],
        now: Callable[[], datetime],
    ) -> None:
        """`version`: of the operator. `wake`: has a ModelDeployment reconciled. `may_write`: if it has the lease."""
        self._client, self._key_file, self._version = client, key_file, version
        self._wake, self._may_write, self._now = wake, may_write, now
        self._pending: dict[tuple[ObjectKey, str], _Pending] = {}  # by ModelDeployment and revision
        self._news = asyncio.Event()

    def after(self, deployment: ReconciledDeployment, observed: Observed, planned: Plan, now: datetime) -> float | None:
        """Note which verdicts of the status have no statement yet; `run` signs them."""
        last = {one.revision: one for one in verdicts(planned.status)}
        for one in last.values():
            snapshot = observed.snapshots.get(one.revision)
            if snapshot is None or not snapshot.name:
                continue
            place = (deployment.key, one.revision)
            pending = self._pending.get(place)
            if is_stated(snapshot.statement, one):  # by whatever key: keys are rotated
                self._pending.pop(place, None)
            elif pending is None or pending.verdict != one or (pending.payload is None and snapshot.weights):
                self._pending[place] = self._prepared(deployment, observed, planned, one)
                self._news.set()
        return None

    def forget(self, key: ObjectKey) -> None:
        """Drop what is not written of a ModelDeployment that is gone."""
        self._pending = {place: item for place, item in self._pending.items() if place[0] != key}

    def leave(self, key: ObjectKey) -> None:
        """Drop what is not written: its records are being deleted."""
        self.forget(key)

    def reset(self) -> None:
        """Drop all: another operator may have signed it."""
        self._pending.clear()

    async def run(self) -> None:
        """Sign and write what is due, until cancelled."""
        try:
            log.info("verdicts are signed by the key %s", dsse.key_id(self._key().public_key()))
        except KeyUnreadable as error:
            log.warning("verdicts cannot be signed: %s", error)
        while True:
            self._news.clear()
            await self.sign_due()
            try:
                async with asyncio.timeout(IDLE_S):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def sign_due(self) -> None:
        """Sign and write what is due, one after the other."""
        for place, item in list(self._pending.items()):
            if item.due_at <= time.monotonic() and self._may_write() and self._pending.get(place) is item:
                await self._write(place, item)

    def _prepared(
        self, deployment: ReconciledDeployment, observed: Observed, planned: Plan, verdict: RevisionVerdict
    ) -> _Pending:
        obj, record = deployment.obj, observed.snapshots[verdict.revision].name
        decided = Decided(verdict, obj, status.parse(obj.get("status")), planned.status, observed)
        try:
            return _Pending(obj, verdict, record, statement(decided, self._version, self._now()))
        except NothingPinned as error:
            return _Pending(obj, verdict, record, None, str(error))

    async def _write(self, place: tuple[ObjectKey, str], item: _Pending) -> None:
        item.due_at = time.monotonic() + AGAIN_S
        if item.payload is None:
            await self._report(item, item.problem)
            return
        try:
            envelope = dsse.sign(PAYLOAD_TYPE, item.payload, self._key())
            change = {"metadata": {"annotations": {ANNOTATION: envelope}}}
            await self._client.patch(CONTROLLER_REVISIONS, place[0][0], item.record, change)
        except KeyUnreadable as error:
            await self._report(item, str(error))
        except Fenced:
            return  # the operator that has the lease now signs it
        except (NotFound, Leaving):
            self._drop(place, item)
        except ApiError as error:
            await self._report(item, f"ControllerRevision {item.record} cannot be changed: {error}")
        except Exception:
            log.exception("a bug: the verdict on revision %s of %s was not signed", place[1], "/".join(place[0]))
        else:
            self._drop(place, item)
            self._wake(place[0])  # what has the statement written elsewhere sees it at once

    def _drop(self, place: tuple[ObjectKey, str], item: _Pending) -> None:
        if self._pending.get(place) is item:
            del self._pending[place]

    def _key(self) -> dsse.PrivateKey:
        try:
            with self._key_file.open("rb") as file:
                return dsse.private_key(file.read(dsse.MOST_KEY_BYTES))
        except OSError as error:
            raise KeyUnreadable(f"the signing key {self._key_file} cannot be read: {error.strerror}") from error
        except dsse.UnusableKey as error:
            raise KeyUnreadable(f"the signing key {self._key_file} cannot be used: {error}") from error

    async def _report(self, item: _Pending, why: str) -> None:
        """Post an Event for each new failure: the rollout does not depend on it."""
        if item.reported == why:
            return
        item.reported = why
        text = f"the verdict on revision {item.verdict.revision} ({item.verdict.verdict}) is not signed: {why}"
        await events.post(self._client, item.obj, Event("Warning", "VerdictNotSigned", text), self._now())
