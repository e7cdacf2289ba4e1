"""Looks at all ModelDeployments with adapters: writes the file of these, and reads what the pods report of them.

The runner keeps what pods report for reconciles, of ModelAdapters and of the ModelDeployments that serve them, and
queues these when it changes. It decides nothing about them.
"""

import asyncio
import hashlib
import json
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import aiohttp

from slipway_contracts.adapters import ADAPTERS_PORT, CONFIG_MAP
from slipway_operator.adapters import serving
from slipway_operator.adapters.members import members
from slipway_operator.adapters.reports import read_pod
from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.api.v1alpha1.status import State
from slipway_operator.component import Component, NotYet, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Fenced
from slipway_operator.kube.ownership import is_leaving
from slipway_operator.kube.reading import pod_trouble
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.resources import CONFIG_MAPS, PODS
from slipway_operator.kube.subjects import is_adapter
from slipway_operator.manifests.adapter_file import AdapterSelection, adapter_file, chosen
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.shared_file import shared_file
from slipway_operator.model import labels
from slipway_operator.model.adapter_views import AdapterPod, AdapterRevision, BaseView
from slipway_operator.model.cluster.observed import Observed, Snapshot
from slipway_operator.model.deployment.adapter_spec import base_of
from slipway_operator.model.deployment.spec import Spec
from slipway_operator.pools import refreshing
from slipway_operator.pools.writing import MemberNews
from slipway_operator.turns import Turns
from slipway_process.supervisor import OnFailure

LOOK_S = 2.0
AWAITED_S = 1.0  # until the first look has ended, as a rule
APPLY_AGAIN_S = 240.0  # manual changes are reverted within this time
CONCURRENCY, OF_A_NAMESPACE = 16, 8
REPORTS_S = 6.0  # for all pods of a ModelDeployment; those that were not read by then count as silent in this look
KEPT_S = 15.0
NO_ROLLOUT = ("", State.ABORTED, State.ABORTING)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _SeenDeployment:
    """What this process knows of one ModelDeployment with adapters. Pods by uid."""

    marks: refreshing.Marks = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)  # pods that did not answer in the last look
    last: dict[str, tuple[AdapterPod, float]] = field(default_factory=dict)  # last answer of each ready pod, and when


class AdapterRunner(Component):
    """Writes the files of adapters and reads all pods that load them.

    `may_write`: whether this operator has the lease. `changed`: called with the key of each ModelAdapter and each
    ModelDeployment for which something changed. `port`: where pods report.
    """

    task, on_failure = "adapters", OnFailure.SHOW

    def __init__(
        self,
        client: Client,
        cache: ObjectCache,
        session: aiohttp.ClientSession,
        may_write: Callable[[], bool],
        changed: Callable[[ObjectKey], None],
        *,
        port: int = ADAPTERS_PORT,
    ) -> None:
        self._client, self._cache, self._session, self._port = client, cache, session, port
        self._may_write, self._changed = may_write, changed
        self._bases: dict[ObjectKey, _SeenDeployment] = {}
        self._files: dict[str, tuple[str, float]] = {}  # digest of the ConfigMap of a namespace, and when
        self._turns = Turns(CONCURRENCY, OF_A_NAMESPACE)
        self._news, self._trouble = MemberNews(), ""
        self.views: dict[ObjectKey, BaseView] | None = None  # None before the first look

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state, in which revisions of adapters have the readiness that pods report."""
        (namespace, name), obj = deployment.key, deployment.obj
        if not is_adapter(name):
            view = (self.views or {}).get(deployment.key)
            hold = serving.hold_of_base(view) if view and not _goes_on_without_them(deployment) else None
            return replace(observed, hold=hold) if hold else observed
        if self.views is None:
            # Else its revisions would look as if they were not loaded.
            raise NotYet(AWAITED_S, "the operator has not read yet which adapters pods have loaded")
        base, stable = base_of(obj), (obj.get("status") or {}).get("stableRevision")
        return serving.served(observed, name, base, self.views.get((namespace, base)), stable)

    def reset(self) -> None:
        """Adapters wait until their pods have been looked at again."""
        self._bases, self._files, self.views = {}, {}, None

    async def run(self) -> None:
        """Look every LOOK_S until cancelled."""
        while True:
            try:
                if self._may_write():
                    await self.look()
            except Fenced:
                pass  # another operator has the lease and does this
            except ApiError as error:
                self._warn(str(error))
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Write all files that changed, read the reports of all pods, and queue what changed.

        Raises:
            Fenced: another operator has the lease.
        """
        revisions, named = members(self._cache)
        bases = {key: obj for key in self._cache.deployments() if (obj := self._base(key, named))}
        files = {key: chosen(revisions.get(key, ())) for key in bases}
        texts = {key: adapter_file(item.listed) for key, item in files.items()}
        troubles = await self._write_files(texts, bases)
        keys = [key for key in bases if key in named]
        self._bases = {key: self._bases.get(key, _SeenDeployment()) for key in keys}
        looks = (self._view(key, bases[key], files[key], texts[key], troubles.get(key[0], "")) for key in keys)
        views = dict(zip(keys, await asyncio.gather(*looks), strict=True))
        self._warn("; ".join(troubles.values()))
        self._know(views, revisions, named)

    def _base(self, key: ObjectKey, named: Mapping[ObjectKey, set[str]]) -> Object | None:
        """A ModelDeployment with room for adapters, or with ModelAdapters that name it; else None."""
        obj = self._cache.get(key)
        if obj is None or is_leaving(obj):
            return None
        return obj if key in named or (obj.get("spec") or {}).get("adapters") else None

    async def _write_files(self, files: Mapping[ObjectKey, str], bases: Mapping[ObjectKey, Object]) -> dict[str, str]:
        """Apply one ConfigMap for each namespace; returns by namespace why it cannot be written. Raises Fenced."""
        troubles: dict[str, str] = {}
        by_namespace: dict[str, dict[str, str]] = defaultdict(dict)
        for (namespace, name), text in files.items():
            by_namespace[namespace][name] = text
        marks = {labels.MANAGED_BY: "slipway", labels.COMPONENT: "adapters"}
        for namespace, texts in by_namespace.items():
            owners = [Owner.of(bases[namespace, name]) for name in texts]
            manifest = shared_file(CONFIG_MAP, labels.KIND, namespace, texts, marks, owners)
            digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
            known = self._files.get(namespace)
            if known and known[0] == digest and time.monotonic() - known[1] < APPLY_AGAIN_S:
                continue
            try:
                await self._client.apply(CONFIG_MAPS, manifest)
                self._files[namespace] = digest, time.monotonic()
            except Fenced:
                raise
            except ApiError as error:
                self._files.pop(namespace, None)
                troubles[namespace] = f"ConfigMap {CONFIG_MAP} of {namespace} cannot be written: {error}"
        self._files = {name: item for name, item in self._files.items() if name in by_namespace}
        return troubles

    async def _view(self, key: ObjectKey, obj: Object, file: AdapterSelection, text: str, trouble: str) -> BaseView:
        known, status = self._bases[key], obj.get("status") or {}
        pods = [pod for pod in self._cache.children(key)[PODS] if _is_ready(pod)]
        reports = await self._reports(known, key[0], pods)
        if key[0] in self._files:
            await self._refresh(known, pods, reports, file, text)
        rollout = status.get("rollout") or {}
        return BaseView(
            stable=str(status.get("stableRevision") or ""),
            target=str(rollout.get("revision") or "") if rollout.get("state", "") not in NO_ROLLOUT else "",
            pods=tuple(reports.values()),
            beyond=file.beyond,
            waiting=file.waiting,
            problem=trouble,
            generation=int(obj["metadata"].get("generation", 0)),
        )

    async def _refresh(
        self,
        known: _SeenDeployment,
        pods: Sequence[Object],
        reports: Mapping[str, AdapterPod],
        file: AdapterSelection,
        text: str,
    ) -> None:
        """Annotate pods, so that kubelets write the file now."""
        now_s = time.monotonic()
        wanted = {(item.snapshot.inputs.model.name, item.snapshot.revision) for item in file.listed}
        behind = {uid: pod.states is not None and wanted != pod.states.keys() for uid, pod in reports.items()}
        known.marks = refreshing.seen_marks(pods, known.marks, now_s)
        late = await refreshing.refresh(self._client, pods, known.marks, refreshing.digest(text), behind, now_s)
        if late:
            self._warn(late)

    async def _reports(self, known: _SeenDeployment, namespace: str, pods: Sequence[Object]) -> dict[str, AdapterPod]:
        """What these pods report within REPORTS_S, by uid. Those that were silent in the last look are read last.

        Of a pod that is silent its last report counts for KEPT_S: its readiness is the kubelet's to decide.
        """
        order = sorted(pods, key=lambda pod: (_uid(pod) in known.silent, random.random()))
        tasks = {_uid(pod): asyncio.create_task(self._report(namespace, pod)) for pod in order}
        try:
            if tasks:
                await asyncio.wait(tasks.values(), timeout=REPORTS_S)
            found = {uid: task.result() for uid, task in tasks.items() if task.done()}
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        reports = {_uid(pod): found.get(_uid(pod), _silent(pod)) for pod in pods}
        now_s = time.monotonic()
        fresh = {uid: (pod, now_s) for uid, pod in reports.items() if pod.states is not None}
        kept = {uid: last for uid, last in known.last.items() if uid in reports and now_s - last[1] < KEPT_S}
        known.silent, known.last = reports.keys() - fresh.keys(), kept | fresh
        return {uid: known.last[uid][0] if uid in known.last else pod for uid, pod in reports.items()}

    async def _report(self, namespace: str, pod: Object) -> AdapterPod:
        async with self._turns.turn(namespace):
            return replace(_silent(pod), states=await read_pod(self._session, _address(pod), self._port))

    def _know(
        self,
        views: dict[ObjectKey, BaseView],
        revisions: Mapping[ObjectKey, list[AdapterRevision]],
        named: Mapping[ObjectKey, set[str]],
    ) -> None:
        """Keep the views, and queue the ModelAdapters and ModelDeployments for which something changed."""
        facts: dict[ObjectKey, set[Hashable]] = {}
        texts: dict[ObjectKey, set[Hashable]] = {}
        for base, adapters in named.items():
            view, records = views.get(base), defaultdict[str, list[Snapshot]](list)
            for item in revisions.get(base, ()):
                records[item.adapter].append(item.snapshot)
            for adapter in adapters:
                own = records[adapter]
                facts[base[0], adapter] = {serving.facts(view, adapter, own)}
                texts[base[0], adapter] = {serving.texts(view, own)}
            if view:
                facts[base] = {serving.hold_of_base(view)}
        self.views = views
        for key in self._news.changed(facts, texts, time.monotonic()):
            self._changed(key)

    def _warn(self, trouble: str) -> None:
        """Log a trouble once, not at each look."""
        if trouble and trouble != self._trouble:
            log.warning("adapters are not kept: %s", trouble)
        self._trouble = trouble


def _goes_on_without_them(deployment: ReconciledDeployment) -> bool:
    """Whether spec.rollout.promoteFull names the attempt in flight, so that no adapter holds it."""
    if not isinstance(deployment.spec, Spec):
        return False
    rollout = (deployment.obj.get("status") or {}).get("rollout") or {}
    revision, _, attempt = (deployment.spec.intents.promote_full or "").partition("/")
    return bool(revision) and (revision, int(attempt or 1)) == (rollout.get("revision"), rollout.get("attempt", 1))


def _is_ready(pod: Object) -> bool:
    return pod_trouble.is_ready(pod) and not is_leaving(pod) and bool(_address(pod))


def _silent(pod: Object) -> AdapterPod:
    marks = pod["metadata"].get("labels") or {}
    return AdapterPod(pod["metadata"]["name"], labels.what_runs(str(marks.get(labels.REVISION) or "")))


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def _address(pod: Object) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")
