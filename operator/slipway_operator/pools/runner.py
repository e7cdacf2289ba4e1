"""Looks at all ModelPools: makes their pods and the file of their entries, reads both, writes the status.

The runner keeps what pods report for the reconciles of members, that is ModelDeployments with an entry in a pool, and
queues these when it changes. It decides nothing about members.
"""

import asyncio
import hashlib
import json
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import aiohttp

from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_contracts.api.writing import to_json
from slipway_operator.api.fitting import fitted
from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.api.pools.model_pool import ModelPoolSpec, ModelPoolStatus
from slipway_operator.component import Component, NotYet, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Fenced, NotFound, Refused, Stale
from slipway_operator.kube.ownership import is_controlled_by, is_leaving
from slipway_operator.kube.reading import pod_trouble
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.resources import (
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    MODEL_POOLS,
    NETWORK_POLICIES,
    PODS,
    STATEFUL_SETS,
    Resource,
)
from slipway_operator.kube.secrets.certificates import Certificates
from slipway_operator.kube.subjects import is_adapter
from slipway_operator.manifests.network_policy import NetworkPolicySettings, pool_policy
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pools import entries, stateful_set
from slipway_operator.manifests.pools.entries import PoolMemberRevision
from slipway_operator.manifests.shared_file import shared_file
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.pool_views import EntryState, PoolPod, PoolView
from slipway_operator.planning import pools as planning
from slipway_operator.pools import refreshing, serving
from slipway_operator.pools.members import Members, members
from slipway_operator.pools.reports import PoolTarget, load, read_pod
from slipway_operator.pools.writing import MemberNews, WriteRate
from slipway_operator.turns import Turns
from slipway_process.supervisor import OnFailure

LOOK_S, ABSENT_S = 2.0, 60.0
AWAITED_S = 1.0  # until the first look has ended, as a rule
APPLY_AGAIN_S = 240.0  # manual changes are reverted within this time
NO_POD_AGAIN_S = 20.0  # a StatefulSet without a pod may have been deleted
CONCURRENCY = 16
OF_A_NAMESPACE = 8
REPORTS_S = 6.0  # for all pods of a pool; those that were not read by then count as silent in this look
MAX_LOADS = 8  # loads that are requested of a pod in one look

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What the installation adds to every pool."""

    server_image: str
    namespaces: Sequence[str] = ()
    tls: bool = False
    network_policy: NetworkPolicySettings | None = None


@dataclass(frozen=True, slots=True)
class PoolAccess:
    """What a runner reads and writes with. `session`: for HTTP requests to pods."""

    client: Client
    cache: ObjectCache
    session: aiohttp.ClientSession
    certificates: Certificates | None = None


@dataclass(slots=True)
class _Pool:
    """What this process knows of one pool."""

    applied: dict[Resource, tuple[str, float]] = field(default_factory=dict)  # digest of a manifest, and when
    uid: str = ""  # of the StatefulSet
    loaded: set[tuple[str, str]] = field(default_factory=set)  # uid of a pod and a revision that it had in memory
    writes: WriteRate = field(default_factory=WriteRate)
    marks: refreshing.Marks = field(default_factory=dict)
    late: str = ""  # why pods may see a change of their entries late
    present: int = 0  # pods that exist
    silent: set[str] = field(default_factory=set)  # uids of pods that did not answer in the last look


@dataclass(frozen=True, slots=True)
class _Entries:
    """What the file of a pool has. `beyond`: number of revisions that it has no room for. `digest`: "" if unwritten."""

    listed: list[PoolMemberRevision]
    beyond: int
    digest: str
    unwritten: str  # why the pods do not get it


class PoolRunner(Component):
    """Makes and reads all pools, and writes their status.

    `may_write`: whether this operator has the lease. `changed`: called with the key of each ModelDeployment for which
    something about its pool changed.
    """

    task, on_failure = "pools", OnFailure.SHOW

    def __init__(
        self,
        access: PoolAccess,
        settings: PoolSettings,
        may_write: Callable[[], bool],
        changed: Callable[[ObjectKey], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client, self._cache, self._session = access.client, access.cache, access.session
        self._certificates, self._settings = access.certificates, settings
        self._may_write, self._changed, self._now = may_write, changed, now
        self._pools: dict[ObjectKey, _Pool] = {}
        self._files: dict[str, tuple[str, float]] = {}  # digest of the ConfigMap of a namespace, and when
        self._turns = Turns(CONCURRENCY, OF_A_NAMESPACE)
        self._trouble = ""
        self._members = MemberNews()
        self.views: dict[ObjectKey, PoolView] | None = None  # None before the first look

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state in which members have the readiness and troubles that their pools give."""
        if is_adapter(deployment.key[1]):
            return observed
        if self.views is None and serving.has_members(observed):
            # Else their pods would look as if they were gone.
            raise NotYet(AWAITED_S, "the operator has not read the ModelPools and their pods yet")
        stable = (deployment.obj.get("status") or {}).get("stableRevision")
        return serving.served(observed, deployment.key[0], self.views or {}, stable)

    def reset(self) -> None:
        """Members wait until the pools have been looked at again."""
        self._pools, self._files, self.views = {}, {}, None

    async def run(self) -> None:
        """Look every LOOK_S until cancelled."""
        while True:
            pause_s = LOOK_S
            try:
                if self._may_write():
                    await self.look()
            except (NotFound, Refused) as error:
                pause_s = ABSENT_S  # the CRD, or the right to read it, is missing
                self.views = self.views or {}
                self._warn(str(error))
            except Fenced:
                pass  # another operator has the lease and does this
            except ApiError as error:
                self._warn(str(error))
            await asyncio.sleep(pause_s)

    async def look(self) -> None:
        """Bring all pools one step nearer to their specs, read what their pods report, and queue changed members.

        Raises:
            ApiError: pools cannot be read. What keeps a single pool from its state is logged.
        """
        namespaces = self._settings.namespaces or (None,)
        lists = [await self._client.list(MODEL_POOLS, namespace, cached=True) for namespace in namespaces]
        found = [one for listed in lists for one in listed if not is_leaving(one)]
        wanted, named = members(self._cache)
        keys = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in found}
        self._pools = {key: self._pools.get(key, _Pool()) for key in keys}
        chosen = {key: entries.chosen(wanted.get(key, ())) for key in keys}
        files = {key: entries.pool_file(listed) for key, (listed, _) in chosen.items()}
        unwritten, troubles = await self._write_files(files, [Owner.of(one) for one in found])
        looks: dict[ObjectKey, Awaitable[tuple[PoolView, str]]] = {}
        for obj in found:
            key = (obj["metadata"]["namespace"], obj["metadata"]["name"])
            written = refreshing.digest(files[key]) if key[0] in self._files else ""
            looks[key] = self._kept(key, obj, _Entries(*chosen[key], written, unwritten.get(key[0], "")))
        views: dict[ObjectKey, PoolView] = {}
        for key, result in zip(looks, await asyncio.gather(*looks.values(), return_exceptions=True), strict=True):
            if isinstance(result, BaseException):
                raise result
            views[key], trouble = result
            troubles += [f"{'/'.join(key)}: {trouble}"] if trouble else []
        self._warn("; ".join(troubles))
        self._know(views, wanted, named)

    async def _kept(self, key: ObjectKey, obj: Object, file: _Entries) -> tuple[PoolView, str]:
        """The view of a pool, and what went wrong. Raises Fenced."""
        known = self._pools[key]
        try:
            return await self._keep(key, obj, file), known.late
        except Fenced:
            raise
        except ApiError as error:
            # The former view still counts: members must not see the pool as gone.
            trouble = str(error)
        except Exception:
            log.exception("a bug: the ModelPool %s/%s is not kept", *key)
            trouble = "the operator failed to keep it; see its log"
        return (self.views or {}).get(key) or PoolView(known.uid, problem=trouble), trouble

    def _know(self, views: dict[ObjectKey, PoolView], wanted: Members, named: Mapping[ObjectKey, set[str]]) -> None:
        """Keep the views, and queue the ModelDeployments for which something changed; no others, as a pool has many."""
        fresh: dict[ObjectKey, set[Hashable]] = {}
        texts: dict[ObjectKey, set[Hashable]] = {}
        for pool, deployments in named.items():
            for name in deployments:
                fresh.setdefault((pool[0], name), set()).add((pool, pool in views))
        for pool, listed in wanted.items():
            for one in listed:
                key, revision = (pool[0], one.deployment), one.snapshot.revision
                fresh.setdefault(key, set()).add((revision, serving.facts(views.get(pool), revision)))
                texts.setdefault(key, set()).add((revision, serving.texts(views.get(pool), revision)))
        self.views = views
        for key in self._members.changed(fresh, texts, time.monotonic()):
            self._changed(key)

    async def _write_files(
        self, files: dict[ObjectKey, str], pools: Sequence[Owner]
    ) -> tuple[dict[str, str], list[str]]:
        """Apply one ConfigMap for each namespace with pools: it has the files of all of them, and of no former pool.

        Returns by namespace why the API server refuses it, such as for its size; and all errors, for the log.
        """
        refused: dict[str, str] = {}
        troubles: list[str] = []
        by_namespace: dict[str, dict[str, str]] = defaultdict(dict)
        for (namespace, name), text in files.items():
            by_namespace[namespace][name] = text
        marks = {labels.MANAGED_BY: "slipway", labels.COMPONENT: "pool"}
        for namespace, of_pools in by_namespace.items():
            owners = [one for one in pools if one.namespace == namespace]
            manifest = shared_file(entries.CONFIG_MAP, labels.POOL_KIND, namespace, of_pools, marks, owners)
            try:
                self._files[namespace] = await self._applied(CONFIG_MAPS, manifest, self._files.get(namespace))
            except Fenced:
                raise
            except ApiError as error:
                self._files.pop(namespace, None)
                troubles.append(f"ConfigMap {entries.CONFIG_MAP} of {namespace} cannot be written: {error}")
                if isinstance(error, Refused):
                    refused[namespace] = troubles[-1]
        self._files = {name: known for name, known in self._files.items() if name in by_namespace}
        return refused, troubles

    async def _applied(
        self, resource: Resource, manifest: Object, known: tuple[str, float] | None
    ) -> tuple[str, float]:
        """Apply a manifest, unless the same one was applied in the last APPLY_AGAIN_S. Returns its digest and when."""
        digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
        if known and known[0] == digest and time.monotonic() - known[1] < APPLY_AGAIN_S:
            return known
        await self._client.apply(resource, manifest)
        return digest, time.monotonic()

    async def _keep(self, key: ObjectKey, obj: Object, file: _Entries) -> PoolView:
        known, former = self._pools[key], _former(obj)
        generation = obj["metadata"].get("generation", 0)
        try:
            spec = read(ModelPoolSpec, encoded(obj.get("spec") or {}), "spec")
            image = spec.image or former.image or self._settings.server_image
            manifest = stateful_set.stateful_set(Owner.of(obj), spec, image, tls=self._settings.tls)
        except (UnreadableObject, ValueError) as error:
            await self._write(known, obj, former, planning.refused(generation, str(error), former, self._now()))
            return (self.views or {}).get(key) or PoolView(known.uid, problem=str(error))
        refusal = await self._make(known, Owner.of(obj), manifest)
        view = await self._view(key, known, refusal or file.unwritten, file)
        listed, former_image = (file.listed, file.beyond), replace(former, image=image)
        fresh = planning.status(generation, spec, view, listed, former_image, self._now(), unwritten=file.unwritten)
        await self._write(known, obj, former, fresh)
        return view

    async def _make(self, known: _Pool, owner: Owner, manifest: Object) -> str:
        """Apply the objects of a pool. Returns why it cannot have pods, or an empty string."""
        if self._certificates and self._settings.tls:
            await self._certificates.keep(owner.namespace)
        around: list[tuple[Resource, Object]] = [(DISRUPTION_BUDGETS, stateful_set.disruption_budget(owner))]
        if self._settings.network_policy:
            metadata = stateful_set.metadata(owner, "fence")
            around.append((NETWORK_POLICIES, pool_policy(metadata, owner.name, self._settings.network_policy)))
        for resource, item in around:
            try:
                known.applied[resource] = await self._applied(resource, item, known.applied.get(resource))
            except Refused as error:
                log.warning("%s of the ModelPool %s is not applied: %s", resource.kind, owner.name, error)
        before = known.applied.get(STATEFUL_SETS)
        if before and not known.present and manifest["spec"]["replicas"]:
            before = before if time.monotonic() - before[1] < NO_POD_AGAIN_S else None
        try:
            known.applied[STATEFUL_SETS] = await self._applied(STATEFUL_SETS, manifest, before)
            if known.applied[STATEFUL_SETS] != before or not known.uid:
                name = manifest["metadata"]["name"]
                live = await self._client.get(STATEFUL_SETS, owner.namespace, name)
                known.uid = str(live["metadata"]["uid"]) if is_controlled_by(live, owner.uid) else ""
        except Refused as error:
            return f"the pods cannot be created: {error}"
        return "" if known.uid else f"StatefulSet {manifest['metadata']['name']} belongs to another controller"

    async def _view(self, key: ObjectKey, known: _Pool, refusal: str, file: _Entries) -> PoolView:
        found = await self._client.list(PODS, key[0], f"{labels.MODEL_POOL}={key[1]}", cached=True)
        own = [pod for pod in found if known.uid and is_controlled_by(pod, known.uid)]
        ready = [pod for pod in own if pod_trouble.is_ready(pod) and not is_leaving(pod) and _address(pod)]
        reports, known.present = await self._reports(known, ready, file.listed), len(own)
        await self._refresh(known, own, dict(zip((_uid(pod) for pod in ready), reports, strict=True)), file)
        uids = {_uid(pod) for pod in ready}
        known.loaded = {one for one in known.loaded if one[0] in uids}
        troubles = [one for one in pod_trouble.of_pods(own) if one]
        problem = refusal or (f"pod {troubles[0].pod}: {troubles[0].reason}: {troubles[0].message}" if troubles else "")
        return PoolView(known.uid, len(own), tuple(reports), problem)

    async def _refresh(
        self, known: _Pool, pods: Sequence[Object], reports: Mapping[str, PoolPod], file: _Entries
    ) -> None:
        """Annotate pods, so that kubelets write the file of entries now; notes in `known` why one could not be."""
        if not file.digest:
            return
        now_s, wanted = time.monotonic(), {one.snapshot.revision for one in file.listed}
        known.marks = refreshing.seen_marks(pods, known.marks, now_s)
        behind = {uid: one.entries is not None and not wanted <= one.entries.keys() for uid, one in reports.items()}
        known.late = await refreshing.refresh(self._client, pods, known.marks, file.digest, behind, now_s)

    async def _reports(self, known: _Pool, pods: list[Object], listed: list[PoolMemberRevision]) -> list[PoolPod]:
        """What these pods report, within REPORTS_S. Those that were silent in the last look are read last, in turns."""
        found = {_uid(pod): PoolPod(pod["metadata"]["name"]) for pod in pods}
        order = sorted(pods, key=lambda pod: (_uid(pod) in known.silent, random.random()))
        tasks = {_uid(pod): asyncio.create_task(self._report(known, pod, listed)) for pod in order}
        try:
            if tasks:
                await asyncio.wait(tasks.values(), timeout=REPORTS_S)
            found |= {uid: task.result() for uid, task in tasks.items() if task.done()}
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        known.silent = {uid for uid, one in found.items() if one.entries is None}
        return [found[_uid(pod)] for pod in pods]

    async def _report(self, known: _Pool, pod: Object, listed: list[PoolMemberRevision]) -> PoolPod:
        """Read what a pod reports, and request loads of entries that are not stable and were never in its memory."""
        metadata = pod["metadata"]
        target = PoolTarget.of(pod)
        async with self._turns.turn(metadata["namespace"]):
            found = await read_pod(self._session, target)
            if found.entries is None:
                return found
            known.loaded |= {
                (metadata["uid"], one.snapshot.revision)
                for one in listed  # no other names: a pod may report any
                if (state := found.entries.get(one.snapshot.revision)) and state.was_loaded
            }
            seen = {name for uid, name in known.loaded if uid == metadata["uid"]}
            unproved = [one for one in listed if not one.stable and one.snapshot.revision in found.entries]
            due = [one for one in unproved if one.snapshot.revision not in seen][:MAX_LOADS]
            await asyncio.gather(
                *(load(self._session, target, one.snapshot.inputs.model.name, one.snapshot.revision) for one in due)
            )
        states = {
            name: EntryState(one.state, one.reason, one.was_loaded or name in seen)
            for name, one in found.entries.items()
        }
        return PoolPod(found.name, states, found.loaded, found.memory_bytes, found.memory_limit_bytes)

    async def _write(self, known: _Pool, obj: Object, former: ModelPoolStatus, fresh: ModelPoolStatus) -> None:
        """Write the status if it differs and a write is due."""
        if fresh == former or not known.writes.is_due(former, fresh, time.monotonic()):
            return
        kind = {"apiVersion": MODEL_POOLS.api_version, "kind": MODEL_POOLS.kind}
        try:
            status = fitted(ModelPoolStatus, to_json(fresh))
            await self._client.put_status(MODEL_POOLS, {**kind, **obj, "status": status})
            known.writes.wrote(time.monotonic())
        except (Stale, NotFound):
            return  # the next look reads it again

    def _warn(self, trouble: str) -> None:
        """Log a trouble once, not at each look."""
        if trouble and trouble != self._trouble:
            log.warning("ModelPools are not kept: %s", trouble)
        self._trouble = trouble


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def _address(pod: Object) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")


def _former(obj: Object) -> ModelPoolStatus:
    """The status in the object; an empty one where it cannot be read."""
    try:
        return read(ModelPoolStatus, encoded(obj.get("status") or {}))
    except UnreadableObject:
        return ModelPoolStatus()
