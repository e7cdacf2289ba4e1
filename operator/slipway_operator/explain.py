"""`slipway-operator explain`: shows the plan of one ModelDeployment, and executes nothing."""

import json
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import yaml

from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_contracts.api.times import format_time, parse_time
from slipway_contracts.api.writing import to_json
from slipway_operator.api.objects import Object
from slipway_operator.api.pools.model_pool import ModelPoolStatus
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.ownership import is_controlled_by
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.gateways import Gateways
from slipway_operator.kube.reading.observe import Observer
from slipway_operator.kube.resources import MODEL_POOLS, STATEFUL_SETS
from slipway_operator.kube.writing.analysis_runs import AnalysisRuns
from slipway_operator.manifests.pools import stateful_set
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.deployment.spec import parse
from slipway_operator.planning import pools as planning
from slipway_operator.planning.decided import PlanSettings
from slipway_operator.planning.plan import explain
from slipway_operator.pools import serving

# What the API server would add to a manifest that was never applied.
_UNAPPLIED = {"namespace": "default", "uid": "00000000-0000-0000-0000-000000000000", "generation": 1}


class NotExplainable(Exception):
    """The file holds neither a ModelDeployment nor output of `explain`."""


def from_file(path: Path, settings: PlanSettings, now: datetime) -> Object:
    """Explain a manifest as a new ModelDeployment, or recompute earlier output of `explain` as of its `now`.

    Raises:
        NotExplainable: when the file holds neither.
    """
    try:
        documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise NotExplainable(f"{path} cannot be read: {error}") from error
    for document in documents:
        if isinstance(document, dict) and "object" in document:
            return _explained(document["object"], _observed(path, document), settings, parse_time(document["now"]))
        if isinstance(document, dict) and document.get("kind") == labels.KIND:
            obj = {**document, "metadata": {**_UNAPPLIED, **document["metadata"]}}
            return _explained(obj, Observed(), settings, now)
    raise NotExplainable(f"{path} holds no {labels.KIND}")


def _observed(path: Path, document: Object) -> Observed:
    try:
        return read(Observed, encoded(document.get("observed") or {}), "observed")
    except UnreadableObject as error:
        raise NotExplainable(f"{path} cannot be read: {error}") from error


async def from_cluster(
    client: Client, gateways: Gateways, obj: Object, settings: PlanSettings, now: datetime
) -> Object:
    """Explain a ModelDeployment of the cluster, with its current children."""
    obj["metadata"].pop("managedFields", None)
    children = await ObjectCache().read(client, (obj["metadata"]["namespace"], obj["metadata"]["name"]))
    observed = await Observer(client, gateways).observe(obj, parse(obj), children)
    observed = replace(observed, analysis_runs=await AnalysisRuns(client).read(obj))
    if not serving.has_members(observed):
        return _explained(obj, observed, settings, now)
    namespace, stable = obj["metadata"]["namespace"], (obj.get("status") or {}).get("stableRevision")
    statuses = await _pools(client, namespace)
    views = {(namespace, name): planning.view_of(status, uid) for name, (status, uid) in statuses.items()}
    explained = _explained(obj, serving.served(observed, namespace, views, stable), settings, now)
    return explained | {"pools": {name: to_json(_own(status, obj)) for name, (status, _) in statuses.items()}}


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


def _explained(obj: Object, observed: Observed, settings: PlanSettings, now: datetime) -> Object:
    # The output has the object and the time, so that `from_file` can compute the rest again.
    return {"object": obj, "now": format_time(now), **explain(obj, parse(obj), observed, settings, now)}
