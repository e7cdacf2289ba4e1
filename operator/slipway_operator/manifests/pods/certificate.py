"""The Secrets with certificates: of the authorities, of gateways and of a namespace's pods; and what pods mount."""

import base64
from collections.abc import Sequence
from typing import Any

from slipway_operator.manifests.pods.tenant_key import kept_secret
from slipway_operator.model.cluster import authorities
from slipway_operator.model.cluster.authorities import Authority, Terms
from slipway_operator.model.cluster.certificates import CA, CERTIFICATE, PRIVATE_KEY, Issued, Role, bundle
from slipway_process.network import host_names

NAME = "slipway-pod-tls"  # in each namespace with a ModelDeployment: one name, which the operator's rights can have
COMPONENT = "certificates"
DIR = "/etc/slipway/tls"
PORT_NAME = "https"  # in place of http: ports of a running pod cannot change, so gateways go by it
_VOLUME = "pod-tls"

GATEWAY = Role(host_names.wildcard(host_names.gateway_zone()), serves=True, connects=True)
OPERATOR = Role(host_names.OPERATOR, serves=False, connects=True)


def pods_of(namespace: str) -> Role:
    """The pods of a namespace share a certificate: who may create one there could mount that of any other."""
    return Role(host_names.wildcard(host_names.pod_zone(namespace)), serves=True, connects=False)


def authorities_secret(namespace: str, name: str, content: Sequence[Authority], terms: Terms) -> dict[str, Any]:
    """The Secret with what signs; the operator alone reads it. `ca.crt` is for people and for Prometheus."""
    public = base64.b64encode(bundle(content, terms).encode()).decode()
    return kept_secret(namespace, name, COMPONENT, {authorities.DATA: authorities.render(content), CA: public})


def issued_secret(namespace: str, name: str, issued: Issued) -> dict[str, Any]:
    """A Secret with a certificate. That of a namespace has no owner: its ModelDeployments share it."""
    return kept_secret(namespace, name, COMPONENT, issued.data())


def secured(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod of slipway-server whose API has TLS, for clients with a certificate; its probes have their own port.

    The kubelet starts no container before the Secret is there.
    """
    server, *others = pod["containers"]
    ports = [{**port, "name": PORT_NAME} if port["name"] == "http" else port for port in server["ports"]]
    # Last, so that no argument of the user takes their place. An image that does not know them ends with the reason.
    flags = ("--ssl-certfile", CERTIFICATE), ("--ssl-keyfile", PRIVATE_KEY), ("--ssl-ca-certs", CA)
    mount = {"name": _VOLUME, "mountPath": DIR, "readOnly": True}
    server = {
        **server,
        "args": [*server["args"], *(part for flag, file in flags for part in (flag, f"{DIR}/{file}"))],
        "ports": ports,
        "volumeMounts": [*server["volumeMounts"], mount],
    }
    items = [{"key": file, "path": file} for _, file in flags]
    volume = {"name": _VOLUME, "secret": {"secretName": NAME, "items": items}}
    return {**pod, "containers": [server, *others], "volumes": [*pod["volumes"], volume]}
