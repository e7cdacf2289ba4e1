"""What the operator reconciles: ModelDeployments, and ModelAdapters under a name that no ModelDeployment has.

In the cache, on the queue and in reconciles `metadata.name` of a ModelAdapter is `subject_name` of it, and its kind is
written in it: so each key is of one object. Only here and where objects are written they have their own names.
"""

from slipway_contracts import adapters
from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.kube.client import Client
from slipway_operator.kube.resources import MODEL_ADAPTERS, MODEL_DEPLOYMENTS, Resource


def is_adapter(name: str) -> bool:
    """Whether a name is that of a ModelAdapter among ModelDeployments."""
    return adapters.adapter_of(name) is not None


def resource_of(name: str) -> Resource:
    """The kind of the object that has this name among ModelDeployments."""
    return MODEL_ADAPTERS if is_adapter(name) else MODEL_DEPLOYMENTS


def as_subject(resource: Resource, obj: Object) -> Object:
    """The object as reconciles know it. `obj`: as the API server has it."""
    if resource is not MODEL_ADAPTERS or is_adapter(obj["metadata"]["name"]):
        return obj
    name = adapters.subject_name(obj["metadata"]["name"])
    kind = {"apiVersion": MODEL_ADAPTERS.api_version, "kind": MODEL_ADAPTERS.kind}
    return {**obj, **kind, "metadata": {**obj["metadata"], "name": name}}


def as_stored(obj: Object) -> Object:
    """The object as the API server has it. `obj`: as reconciles know it; other kinds stay as they are."""
    adapter = adapters.adapter_of(obj["metadata"]["name"]) if obj.get("kind") == MODEL_ADAPTERS.kind else None
    return obj if adapter is None else {**obj, "metadata": {**obj["metadata"], "name": adapter}}


async def read(client: Client, key: ObjectKey) -> Object:
    """Return the object of a key as reconciles know it, from the API server. Raises NotFound."""
    resource = resource_of(key[1])
    return as_subject(resource, await client.get(resource, key[0], adapters.adapter_of(key[1]) or key[1]))
