"""`slipway-operator explain`: shows the plan of one ModelDeployment or ModelAdapter, and executes nothing."""

import json
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from slipway_contracts import adapters
from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_contracts.api.times import format_time, parse_time
from slipway_contracts.api.writing import to_json
from slipway_operator.api.objects import Object
from slipway_operator.api.pools.model_pool import ModelPoolStatus
from slipway_operator.api.v1beta1.differences import as_stored
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.ownership import is_controlled_by
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.gateways import Gateways
from slipway_operator.kube.reading.observe import Observer
from slipway_operator.kube.resources import MODEL_ADAPTERS, MODEL_DEPLOYMENTS, MODEL_POOLS, STATEFUL_SETS
from slipway_operator.kube.subjects import as_subject
from slipway_operator.kube.writing.analysis_runs import AnalysisRuns
from slipway_operator.manifests.pools import stateful_set
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.deployment.adapter_spec import base_of, parse_adapter
from slipway_operator.model.deployment.spec import Invalid, Spec, parse
from slipway_operator.planning import pools as planning
from slipway_operator.planning.decided import PlanSettings
from slipway_operator.planning.plan import explain
from slipway_operator.pools import serving

# What the API server would add to a manifest that was never applied.
_UNAPPLIED = {"namespace": "default", "uid": "00000000-0000-0000-0000-000000000000", "generation": 1}


class NotExplainable(Exception):
    """The file holds neither a ModelDeployment, nor a ModelAdapter with its own, nor output of `explain`."""


def from_file(path: Path, settings: PlanSettings, now: datetime) -> Object:
    """Explain a manifest as a new ModelDeployment, or recompute earlier output of `explain` as of its `now`.

    Raises:
        NotExplainable: when the file holds neither.
    """
    try:
        written = [document for document in yaml.safe_load_all(path.read_text()) if document]
        documents = [as_stored(one) if isinstance(one, dict) else one for one in written]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise NotExplainable(f"{path} cannot be read: {error}") from error
    for document in documents:
        if isinstance(document, dict) and "object" in document:
            earlier = _observed(path, document), settings, parse_time(document["now"])
            return _explained(document["object"], *earlier, document.get("base"))
        if isinstance(document, dict) and document.get("kind") in (labels.KIND, adapters.KIND):
            obj = {**document, "metadata": {**_UNAPPLIED, **document["metadata"]}}
            resource = MODEL_ADAPTERS if document["kind"] == adapters.KIND else MODEL_DEPLOYMENTS
            subject = as_subject(resource, obj)
            return _explained(subject, Observed(), settings, now, _base_in(documents, subject))
    raise NotExplainable(f"{path} holds no {labels.KIND}")


def _base_in(documents: list[Any], obj: Object) -> Object | None:
    """The ModelDeployment of a ModelAdapter, where the same file has it."""
    named = (item for item in documents if isinstance(item, dict) and item.get("kind") == labels.KIND)
    return next((item for item in named if item["metadata"].get("name") == base_of(obj)), None)


def _observed(path: Path, document: Object) -> Observed:
    try:
        return read(Observed, encoded(document.get("observed") or {}), "observed")
    except UnreadableObject as error:
        raise NotExplainable(f"{path} cannot be read: {error}") from error


async def from_cluster(
    client: Client, gateways: Gateways, obj: Object, settings: PlanSettings, now: datetime
) -> Object:
    """Explain a ModelDeployment of the cluster, with its current children; or a ModelAdapter as of `kube.subjects`.

    What pods report of adapters is not read: its revisions have the readiness that the status has.
    """
    obj["metadata"].pop("managedFields", None)
    namespace, base = obj["metadata"]["namespace"], None
    if name := base_of(obj):
        with suppress(NotFound):
            base = await client.get(MODEL_DEPLOYMENTS, namespace, name)
    children = await ObjectCache().read(client, (namespace, obj["metadata"]["name"]))
    observed = await Observer(client, gateways).observe(obj, _spec(obj, base), children)
    observed = replace(observed, analysis_runs=await AnalysisRuns(client).read(obj))
    if name:
        return _explained(obj, _as_in_status(obj, observed), settings, now, base)
    if not serving.has_members(observed):
        return _explained(obj, observed, settings, now)
    stable = (obj.get("status") or {}).get("stableRevision")
    statuses = await _pools(client, namespace)
    views = {(namespace, name): planning.view_of(status, uid) for name, (status, uid) in statuses.items()}
    explained = _explained(obj, serving.served(observed, namespace, views, stable), settings, now)
    return explained | {"pools": {name: to_json(_own(status, obj)) for name, (status, _) in statuses.items()}}


def _as_in_status(obj: Object, observed: Observed) -> Observed:
    """The revisions of an adapter with the readiness in the status."""
    listed = (obj.get("status") or {}).get("revisions") or ()
    ready = {item.get("revision"): int(item.get("ready") or 0) for item in listed}
    workloads = {name: replace(item, ready=ready.get(name, 0)) for name, item in observed.workloads.items()}
    return replace(observed, workloads=workloads)


async def _pools(client: Client, namespace: str) -> dict[str, tuple[ModelPoolStatus, str]]:
    """Return by name each ModelPool's status and the uid of its StatefulSet, "" without one. No pod is read."""
    found: dict[str, tuple[ModelPoolStatus, str]] = {}
    for pool in await client.list(MODEL_POOLS, namespace):
        name, uid = pool["metadata"]["name"], ""
        with suppress(NotFound):
            made = await client.get(STATEFUL_SETS, namespace, stateful_set.name_of(name))
            uid = made["metadata"]["uid"] if is_controlled_by(made, pool["metadata"]["uid"]) else ""
        found[name] = (read(ModelPoolStatus, encoded(pool.get("status") or {}), "status"), uid)
    return found


def _own(status: ModelPoolStatus, obj: Object) -> ModelPoolStatus:
    """Return a pool's status with only the entries of this ModelDeployment."""
    name = obj["metadata"]["name"]
    return replace(status, entries=tuple(one for one in status.entries if one.model_deployment == name))


def to_text(explained: Object) -> str:
    """Return the explained plan as indented JSON."""
    return json.dumps(explained, indent=2)


def _spec(obj: Object, base: Object | None) -> Spec | Invalid:
    return parse_adapter(obj, base) if base_of(obj) else parse(obj)


def _explained(
    obj: Object, observed: Observed, settings: PlanSettings, now: datetime, base: Object | None = None
) -> Object:
    # The output has the objects and the time, so that `from_file` can compute the rest again.
    read = {"object": obj, "now": format_time(now), **({"base": base} if base else {})}
    return {**read, **explain(obj, _spec(obj, base), observed, settings, now)}
