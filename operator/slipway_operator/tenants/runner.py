"""Writes the status of Tenants: at once where a condition changed, at a bounded rate where only use did."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import aiohttp

from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_contracts.api.writing import to_json
from slipway_contracts.tenants import TenantSpec
from slipway_operator.api.fitting import fitted
from slipway_operator.api.objects import Object
from slipway_operator.api.v1alpha1.tenant import TenantStatus
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Fenced, NotFound, Refused, Stale
from slipway_operator.kube.reading.gateways import Gateways
from slipway_operator.kube.resources import TENANTS
from slipway_operator.kube.writing import events
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.planning import tenants
from slipway_operator.tenants.reports import read_reports
from slipway_process.supervisor import OnFailure

LOOK_S, ABSENT_S = 10.0, 60.0
USE_EACH_S = 30.0  # between two writes of a Tenant's status where only use changed
WRITES = 50  # of a status in one look; the others wait for the next one

_NEVER = datetime.min.replace(tzinfo=UTC)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Change:
    """A Tenant whose status differs from the former one. `written`: when this process last wrote its status."""

    obj: Object
    former: TenantStatus
    fresh: TenantStatus
    written: datetime

    @property
    def is_news(self) -> bool:
        return self.fresh.conditions != self.former.conditions


class TenantRunner(Component):
    """Keeps the status of all Tenants up to date. `may_write`: whether this operator has the lease.

    `changed` is called when the first Tenant comes, and when the last one is gone.
    """

    task, on_failure = "tenants", OnFailure.SHOW

    def __init__(
        self,
        client: Client,
        gateways: Gateways,
        session: aiohttp.ClientSession,
        may_write: Callable[[], bool],
        now: Callable[[], datetime],
        changed: Callable[[], None] = lambda: None,
        *,
        show: Callable[[Mapping[str, Mapping[str, float]]], None] = lambda _: None,
    ) -> None:
        """`show` gets the used shares of budgets after each look."""
        self._changed, self._show = changed, show
        self.present: bool | None = None  # whether there is a Tenant; None before the first look
        self._client, self._gateways, self._session = client, gateways, session
        self._may_write, self._now = may_write, now
        self._written: dict[str, datetime] = {}
        self._trouble = ""
        self._unreadable: dict[str, str] = {}  # by name: why, as logged

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with whether there are Tenants."""
        return replace(observed, tenants=self.present)

    async def run(self) -> None:
        """Look every LOOK_S until cancelled."""
        while True:
            pause_s = LOOK_S
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
            await asyncio.sleep(pause_s)

    async def look(self) -> None:
        """Read all Tenants and what gateways report; write each status that is due, with an Event for each change.

        Raises:
            ApiError: Tenants or gateways cannot be read, or no status can be written.
        """
        found = await self._client.list(TENANTS, None, cached=True)
        known = {obj["metadata"]["name"] for obj in found}
        self._written = {name: at for name, at in self._written.items() if name in known}
        self._unreadable = {name: why for name, why in self._unreadable.items() if name in known}
        before, self.present = self.present, bool(found)
        if self.present != bool(before):
            self._changed()
        if not found:
            self._show({})
            return
        reports = await read_reports(self._gateways, self._session)
        changes: list[_Change] = []
        shares: dict[str, dict[str, float]] = {}
        for obj in found:
            name, generation = obj["metadata"]["name"], obj["metadata"].get("generation", 0)
            try:
                spec, former = _spec(obj), _former(obj)
            except UnreadableObject as error:
                self._note_unreadable(name, str(error))
                continue
            self._unreadable.pop(name, None)
            shares[name] = tenants.used_shares(name, spec, reports)
            fresh = tenants.status(name, generation, spec, reports, former, self._now())
            if fresh != former:
                changes.append(_Change(obj, former, fresh, self._written.get(name, _NEVER)))
        self._show(shares)
        due = [one for one in changes if one.is_news or (self._now() - one.written).total_seconds() >= USE_EACH_S]
        for one in sorted(due, key=lambda one: (not one.is_news, one.written))[:WRITES]:
            await self._write(one)

    async def _write(self, change: "_Change") -> None:
        now, kind = self._now(), {"apiVersion": TENANTS.api_version, "kind": TENANTS.kind}
        obj = {**kind, **change.obj}
        try:
            await self._client.put_status(TENANTS, {**obj, "status": fitted(TenantStatus, to_json(change.fresh))})
        except (Stale, NotFound):
            return  # the next look reads it again
        self._written[obj["metadata"]["name"]] = now
        await events.post_all(self._client, obj, tenants.events(change.former, change.fresh), now)

    def _note_unreadable(self, name: str, why: str) -> None:
        """Log once, not at each look, why a Tenant cannot be read."""
        if self._unreadable.get(name) != why:
            log.warning("Tenant %s cannot be read, so its status is not written: %s", name, why)
        self._unreadable[name] = why

    def _warn(self, error: Exception) -> None:
        if str(error) != self._trouble:
            log.warning("the status of Tenants is not written: %s", error)
        self._trouble = str(error)


def _spec(obj: Object) -> TenantSpec:
    return read(TenantSpec, encoded(obj.get("spec") or {}), "spec")


def _former(obj: Object) -> TenantStatus:
    """The status in the object; an empty one where it cannot be read."""
    try:
        return read(TenantStatus, encoded(obj.get("status") or {}))
    except UnreadableObject:
        return TenantStatus()
