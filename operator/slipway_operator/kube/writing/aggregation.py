"""API aggregation: the identity of the API server's front proxy, and the registration of API groups.

https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound, Stale
from slipway_operator.kube.resources import API_SERVICES, CLUSTER_ROLES, CONFIG_MAPS
from slipway_operator.model import labels

_NAMESPACE, _CONFIG = "kube-system", "extension-apiserver-authentication"
_CA, _NAMES = "requestheader-client-ca-file", "requestheader-allowed-names"
# The priority of metrics adapters; among versions the first of ours is preferred.
_GROUP_PRIORITY, _FIRST_VERSION_PRIORITY, _PORT = 100, 200, 443


class NoFrontProxy(Exception):
    """The API server aggregates nothing; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """CA and names of the client certificate of the API server's front proxy."""

    ca: str  # PEM
    names: frozenset[str]  # common names that it may have; none means any


@dataclass(frozen=True, slots=True)
class Host:
    """The Service through which the API server calls us."""

    namespace: str
    service: str
    owner: str  # a ClusterRole: when it is deleted with its release, so are the registrations

    @property
    def dns_name(self) -> str:
        """The name that the front proxy expects in our certificate."""
        return f"{self.service}.{self.namespace}.svc"


async def front_proxy(client: Client) -> FrontProxy:
    """Return the front proxy's CA and names from the ConfigMap in which the API server publishes them.

    Raises:
        NoFrontProxy: when aggregation is not configured.
        ApiError: when it cannot be read.
    """
    try:
        data = (await client.get(CONFIG_MAPS, _NAMESPACE, _CONFIG)).get("data") or {}
    except NotFound as error:
        raise NoFrontProxy(f"ConfigMap {_NAMESPACE}/{_CONFIG} does not exist") from error
    try:
        names = frozenset(str(name) for name in json.loads(data.get(_NAMES) or "[]"))
    except (TypeError, ValueError) as error:
        raise NoFrontProxy(f"ConfigMap {_NAMESPACE}/{_CONFIG}: {_NAMES} is no list") from error
    if not data.get(_CA):
        raise NoFrontProxy(f"ConfigMap {_NAMESPACE}/{_CONFIG} has no {_CA}: the API server has no front proxy")
    return FrontProxy(data[_CA], names)


async def register(client: Client, host: Host, groups: Mapping[str, Sequence[str]], ca: str) -> dict[str, str]:
    """Register every version of each group without another provider; returns each group's provider, "" for us.

    With one version of another provider the whole group is theirs, and our registrations in it are deleted.

    Raises:
        ApiError: when the API server does not let us read or register.
    """
    providers = {}
    for group, versions in groups.items():
        found = [await _live(client, f"{version}.{group}") for version in versions]
        foreign = next((item for item in found if item and not _is_ours(item, host)), None)
        providers[group] = _provider(foreign) if foreign else ""
        if foreign:
            await _withdraw(client, host, [item for item in found if item])
            continue
        for place, (version, live) in enumerate(zip(versions, found, strict=True)):
            wanted = _api_service(host, group, version, _FIRST_VERSION_PRIORITY - place, ca)
            if not live or live["spec"].get("caBundle") != wanted["spec"]["caBundle"]:
                await _apply(client, host, wanted)
    return providers


async def _live(client: Client, name: str) -> Object | None:
    try:
        return await client.get(API_SERVICES, None, name)
    except NotFound:
        return None


async def _apply(client: Client, host: Host, manifest: Object) -> None:
    """Apply without force: a provider that registered the APIService meanwhile keeps it; the next check finds it."""
    role = await client.get(CLUSTER_ROLES, None, host.owner)
    owner = {
        "apiVersion": CLUSTER_ROLES.api_version,
        "kind": CLUSTER_ROLES.kind,
        "name": host.owner,
        "uid": role["metadata"]["uid"],
    }
    metadata = {**manifest["metadata"], "ownerReferences": [owner]}
    await client.apply(API_SERVICES, {**manifest, "metadata": metadata}, force=False)


async def _withdraw(client: Client, host: Host, found: Sequence[Object]) -> None:
    for item in found:
        if _is_ours(item, host):
            try:
                await client.delete(API_SERVICES, None, item["metadata"]["name"], item["metadata"]["uid"])
            except (NotFound, Stale):
                continue


def _is_ours(item: Object, host: Host) -> bool:
    service = item["spec"].get("service") or {}
    return (service.get("namespace"), service.get("name")) == (host.namespace, host.service)


def _provider(item: Object) -> str:
    service = item["spec"].get("service") or {}
    where = f"Service {service.get('namespace')}/{service.get('name')}" if service else "the API server itself"
    return f"{where} (APIService {item['metadata']['name']})"


def _api_service(host: Host, group: str, version: str, priority: int, ca: str) -> Object:
    return {
        "apiVersion": API_SERVICES.api_version,
        "kind": API_SERVICES.kind,
        "metadata": {"name": f"{version}.{group}", "labels": {labels.MANAGED_BY: "slipway"}},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": _GROUP_PRIORITY,
            "versionPriority": priority,
            "caBundle": base64.b64encode(ca.encode()).decode(),
            "service": {"namespace": host.namespace, "name": host.service, "port": _PORT},
        },
    }
