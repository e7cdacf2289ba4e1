"""`slipway-operator explain`: shows the plan of one ModelDeployment, and executes nothing."""

import json
from datetime import datetime
from pathlib import Path

import yaml

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.gateways import Gateways
from slipway_operator.kube.reading.observe import observe
from slipway_operator.model import labels, wire
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.planning.decided import PlanSettings
from slipway_operator.planning.plan import explain

# What the API server would add to a manifest that was never applied.
_UNAPPLIED = {"namespace": "default", "uid": "00000000-0000-0000-0000-000000000000", "generation": 1}


class NotExplainable(Exception):
    """The file holds neither a ModelDeployment nor output of `explain`."""


def from_file(path: Path, settings: PlanSettings, now: datetime) -> Object:
    """Explain a manifest as if it were new, or replay earlier output of `explain` at its moment.

    Raises:
        NotExplainable: when the file holds neither.
    """
    try:
        documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise NotExplainable(f"{path} cannot be read: {error}") from error
    for document in documents:
        if isinstance(document, dict) and "object" in document:
            return _explained(
                document["object"],
                wire.from_json(Observed, document.get("observed") or {}),
                settings,
                wire.parse_time(document["now"]),
            )
        if isinstance(document, dict) and document.get("kind") == labels.KIND:
            obj = {**document, "metadata": {**_UNAPPLIED, **document["metadata"]}}
            return _explained(obj, Observed(), settings, now)
    raise NotExplainable(f"{path} holds no {labels.KIND}")


async def from_cluster(
    client: Client, gateways: Gateways, obj: Object, settings: PlanSettings, now: datetime
) -> Object:
    """Explain a ModelDeployment of the cluster, with its current children."""
    obj["metadata"].pop("managedFields", None)
    children = await ObjectCache().read(client, (obj["metadata"]["namespace"], obj["metadata"]["name"]))
    return _explained(obj, await observe(client, gateways, obj, children), settings, now)


def to_text(explained: Object) -> str:
    """Return the output as text."""
    return json.dumps(explained, indent=2)


def _explained(obj: Object, observed: Observed, settings: PlanSettings, now: datetime) -> Object:
    # Object and moment are included: with them the rest can be computed again.
    return {"object": obj, "now": wire.format_time(now), **explain(obj, observed, settings, now)}
