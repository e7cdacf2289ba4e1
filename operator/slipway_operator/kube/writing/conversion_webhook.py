"""The CRDs of two versions name the conversion webhook and serve v1beta1: the operator sees to both."""

import base64

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
        elif await _change(client, crd, _conversion(host, ca)):
            changed.append(name)
    if foreign:
        raise NotOurs("; ".join(foreign))
    return tuple(changed)


async def _change(client: Client, crd: Object, conversion: Object) -> bool:
    """Whether the CRD had to change. One without v1beta1 is of a former release, or of one that does not serve it."""
    place = next((place for place, version in enumerate(crd["spec"]["versions"]) if version["name"] == BETA), None)
    if place is None:
        return False
    # First of all the webhook: v1beta1 without it would lose what has another name there.
    has_changed = False
    if crd["spec"].get("conversion") != conversion:
        has_changed = True
        crd = await client.apply(CUSTOM_RESOURCE_DEFINITIONS, _applied(crd, conversion))
    if not crd["spec"]["versions"][place]["served"]:
        same = {"op": "test", "path": "/metadata/resourceVersion", "value": crd["metadata"]["resourceVersion"]}
        served = {"op": "replace", "path": f"/spec/versions/{place}/served", "value": True}
        await client.edit(CUSTOM_RESOURCE_DEFINITIONS, None, crd["metadata"]["name"], [same, served])
        has_changed = True
    return has_changed


def _applied(crd: Object, conversion: Object) -> Object:
    """What we apply, with all fields of `conversion` as ours too.

    Were the CA alone ours, a chart without the webhook would take away the rest, and the API server refuses a CA alone.
    """
    return {
        "apiVersion": CUSTOM_RESOURCE_DEFINITIONS.api_version,
        "kind": CUSTOM_RESOURCE_DEFINITIONS.kind,
        "metadata": {"name": crd["metadata"]["name"], "resourceVersion": crd["metadata"]["resourceVersion"]},
        "spec": {"conversion": conversion},
    }


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
