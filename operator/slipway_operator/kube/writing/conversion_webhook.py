"""The CRDs of two versions name the conversion webhook and serve v1beta1: the operator sees to both."""

import base64
from typing import Any

from slipway_operator.api.objects import Object
from slipway_operator.api.v1beta1.differences import BETA
from slipway_operator.kube.client import Client
from slipway_operator.kube.resources import CUSTOM_RESOURCE_DEFINITIONS
from slipway_operator.model import labels
from slipway_operator.model.cluster.webhook_host import WebhookHost

PATH = "/convert"
PLURALS = ("modeldeployments", "modeladapters", "modelroutes", "tenants")
_PORT = 443


class NotOurs(Exception):
    """Another webhook converts these kinds; the message names it."""


async def register(client: Client, host: WebhookHost, ca: str) -> tuple[str, ...]:
    """Have the API server call us with this CA, and serve v1beta1; returns the CRDs that had to change.

    Raises:
        NotOurs: a CRD names the webhook of another release; the others are as they should be.
        ApiError: the API server does not let us read or change a CRD.
    """
    changed, foreign = [], []
    for name in (f"{plural}.{labels.GROUP}" for plural in PLURALS):
        crd = await client.get(CUSTOM_RESOURCE_DEFINITIONS, None, name)
        if other := _other(crd, host):
            foreign.append(f"{name} names {other}")
        elif operations := _operations(crd, host, ca):
            await client.edit(CUSTOM_RESOURCE_DEFINITIONS, None, name, operations)
            changed.append(name)
    if foreign:
        raise NotOurs("; ".join(foreign))
    return tuple(changed)


def _operations(crd: Object, host: WebhookHost, ca: str) -> list[Any]:
    """JSON Patch operations of what differs; empty: nothing does. A CRD without v1beta1 is of a former release."""
    place = next((place for place, one in enumerate(crd["spec"]["versions"]) if one["name"] == BETA), None)
    if place is None:
        return []
    wanted = _conversion(host, ca)
    operations: list[dict[str, Any]] = []
    # First of all the webhook: v1beta1 without it would lose what has another name there.
    if crd["spec"].get("conversion") != wanted:
        operations.append({"op": "add", "path": "/spec/conversion", "value": wanted})
    if not crd["spec"]["versions"][place]["served"]:
        operations.append({"op": "replace", "path": f"/spec/versions/{place}/served", "value": True})
    same = {"op": "test", "path": "/metadata/resourceVersion", "value": crd["metadata"]["resourceVersion"]}
    return [same, *operations] if operations else []


def _conversion(host: WebhookHost, ca: str) -> Object:
    """As the API server returns it, so that equal means equal."""
    service = {"namespace": host.namespace, "name": host.service, "path": PATH, "port": _PORT}
    bundle = base64.b64encode(ca.encode()).decode()
    return {
        "strategy": "Webhook",
        "webhook": {"clientConfig": {"caBundle": bundle, "service": service}, "conversionReviewVersions": ["v1"]},
    }


def _other(crd: Object, host: WebhookHost) -> str:
    """The webhook of another release, in words; empty: there is none."""
    config = ((crd["spec"].get("conversion") or {}).get("webhook") or {}).get("clientConfig") or {}
    service = config.get("service") or {}
    if not config or (service.get("namespace"), service.get("name")) == (host.namespace, host.service):
        return ""
    return f"Service {service.get('namespace')}/{service.get('name')}" if service else str(config.get("url"))
