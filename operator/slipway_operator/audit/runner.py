"""Looks at ModelDeployments, ModelAdapters and Tenants every few seconds, and appends to the audit log what changed."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice

from slipway_operator.api.objects import Object
from slipway_operator.audit.trail import Trail
from slipway_operator.component import Component
from slipway_operator.kube import subjects
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, NotFound, Refused
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.resources import MODEL_ADAPTERS, MODEL_DEPLOYMENTS, TENANTS
from slipway_operator.kube.subjects import as_stored, is_adapter
from slipway_operator.model.in_turns import in_turns
from slipway_operator.planning import audit
from slipway_operator.planning.audit import MODEL_ADAPTER, MODEL_DEPLOYMENT, ROLLED_OUT, TENANT, Record, Recorded
from slipway_process.supervisor import OnFailure

LOOK_S = 5.0
ABSENT = timedelta(minutes=1)  # until Tenants are listed again, after their CRD or the right to read it was missing
MOST = 100  # reads in one look, in turns of namespaces; other objects wait for the next one

log = logging.getLogger(__name__)


class AuditRunner(Component):
    """Appends changes to the audit log. `may_write`: whether this operator has the lease; others record nothing."""

    task, on_failure = "audit", OnFailure.SHOW

    def __init__(
        self,
        client: Client,
        cache: ObjectCache,
        trail: Trail,
        may_write: Callable[[], bool],
        now: Callable[[], datetime],
    ) -> None:
        self._client, self._cache, self._trail = client, cache, trail
        self._may_write, self._now = may_write, now
        self._opened = False
        self._versions: dict[str, str] = {}  # by uid of what is rolled out: the resourceVersion that is recorded
        self._elsewhere: set[str] = set()  # uids in the log of those that this operator does not watch
        self._tenants_after = datetime.min.replace(tzinfo=UTC)
        self._trouble = ""
        self._broken: dict[str, str] = {}  # by object: the error that was logged

    async def run(self) -> None:
        """Look every LOOK_S until cancelled."""
        while True:
            try:
                if self._may_write():
                    await self.look()
                else:
                    self._opened = False  # another operator may append meanwhile
                self._trouble = ""
            except (ApiError, OSError) as error:
                if str(error) != self._trouble:
                    log.error("the audit log is not written; what is new is recorded later: %s", error)
                self._trouble = str(error)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Read all audited objects, and append to the audit log what changed since the last look.

        Raises:
            ApiError: objects cannot be read.
            OSError: records cannot be written: the next look has them again.
        """
        if not self._opened:
            await asyncio.to_thread(self._trail.open)
            self._opened = True
        known, versions = dict(self._trail.known), dict[str, str]()
        found = [*await self._of_tenants(known), *await self._of_subjects(known, versions)]
        if await asyncio.to_thread(self._trail.append, found):
            self._versions = versions

    async def _of_subjects(self, known: Mapping[str, Recorded], versions: dict[str, str]) -> list[Record]:
        """Records of what changed in ModelDeployments and ModelAdapters.

        `versions`: filled with the resourceVersion, by uid, up to which each is recorded once these are written.
        """
        found: list[Record] = []
        present, reads = set(), 0
        for key in in_turns(self._cache.subjects(), lambda key: key[0]):
            if (obj := self._cache.get(key)) is None:
                continue
            present.add(uid := obj["metadata"]["uid"])
            version, former = obj["metadata"]["resourceVersion"], known.get(uid)
            if former is not None and self._versions.get(uid) == version:
                versions[uid] = version
                continue
            if former is None or obj["metadata"].get("generation", 0) > former.generation:
                # The cache lacks managedFields, so read the object from the API server.
                reads += 1
                if reads > MOST or (obj := await self._read(*key)) is None or obj["metadata"]["uid"] != uid:
                    continue
            kind = MODEL_ADAPTER if is_adapter(key[1]) else MODEL_DEPLOYMENT
            found += self._records(kind, as_stored(obj), former)
            versions[uid] = version
        self._elsewhere -= present
        absent = known.keys() - present - self._elsewhere
        missing = [uid for uid in sorted(absent) if known[uid].kind in ROLLED_OUT]
        for uid in islice(in_turns(missing, lambda uid: known[uid].namespace), MOST):
            if await self._is_gone(uid, known[uid]):
                found.append(audit.gone(uid, known[uid]))
            else:
                self._elsewhere.add(uid)
        return found

    def _records(self, kind: str, obj: Object, former: Recorded | None) -> list[Record]:
        """Records of one object; none of one at which a bug is met: those of all others are written."""
        try:
            return audit.records(kind, obj, former, self._now(), self._trail.since)
        except Exception as error:
            name = f"{obj['metadata'].get('namespace', '')}/{obj['metadata'].get('name', '')}"
            if self._broken.get(name) != repr(error):
                log.exception("a bug: changes of the %s %s are not in the audit log", kind, name)
            if len(self._broken) < MOST:
                self._broken[name] = repr(error)
            return []

    async def _is_gone(self, uid: str, former: Recorded) -> bool:
        """Whether an object was deleted; one that this operator may not read, or no longer watches, was not."""
        resource = MODEL_ADAPTERS if former.kind == MODEL_ADAPTER else MODEL_DEPLOYMENTS
        try:
            obj = await self._client.get(resource, former.namespace, former.name)
        except NotFound:
            return True
        except Refused:
            return False
        return bool(obj["metadata"]["uid"] != uid)

    async def _read(self, namespace: str, name: str) -> Object | None:
        try:
            return await subjects.read(self._client, (namespace, name))
        except NotFound:
            return None  # the cache will drop the object too

    async def _of_tenants(self, known: Mapping[str, Recorded]) -> list[Record]:
        if self._now() < self._tenants_after:
            return []
        try:
            tenants = await self._client.list(TENANTS, None, cached=True)
            if _missing(known, tenants):
                # The API server's cache may be behind the log.
                tenants = await self._client.list(TENANTS, None)
        except (NotFound, Refused):
            # The CRD, or the right to read it, is missing.
            self._tenants_after = self._now() + ABSENT
            return []
        found: list[Record] = []
        for obj in tenants:
            found += self._records(TENANT, obj, known.get(obj["metadata"]["uid"]))
        return [*found, *(audit.gone(uid, known[uid]) for uid in _missing(known, tenants))]


def _missing(known: Mapping[str, Recorded], tenants: Iterable[Object]) -> list[str]:
    present = {obj["metadata"]["uid"] for obj in tenants}
    return [uid for uid, one in known.items() if one.kind == TENANT and uid not in present]
