"""The Secrets with certificates: of the authorities, of gateways and of a namespace's pods; and what pods mount."""

import base64
from collections.abc import Sequence
from typing import Any

from slipway_operator.manifests.pods.tenant_key import kept_secret
from slipway_operator.model.cluster import certificates
from slipway_operator.model.cluster.authorities import Terms
from slipway_operator.model.cluster.certificates import CA, CERTIFICATE, PRIVATE_KEY, Issued, Role
from slipway_operator.model.issuing import trust
from slipway_operator.model.issuing.trust import Anchor
from slipway_process.network import host_names

NAME = "slipway-pod-tls"  # the same in each namespace, so that the operator's Role can name this Secret
COMPONENT = "certificates"
DIR = "/etc/slipway/tls"
PORT_NAME = "https"  # in place of `http`: gateways know TLS by it, because the ports of a running pod never change
_VOLUME = "pod-tls"

GATEWAY = Role(host_names.wildcard(host_names.gateway_zone()), serves=True, connects=True)
OPERATOR = Role(host_names.OPERATOR, serves=False, connects=True)


def pods_of(namespace: str) -> Role:
    """Return the role of a namespace's pods. They share one certificate: any pod there could mount another's Secret."""
    return Role(host_names.wildcard(host_names.pod_zone(namespace)), serves=True, connects=False)


def bundle(anchors: Sequence[Anchor], terms: Terms) -> str:
    """Return what every process trusts, as PEM."""
    return certificates.bundle(trust.own(anchors), terms) + "".join(one.certificate for one in trust.cas(anchors))


def authorities_secret(namespace: str, name: str, content: Sequence[Anchor], terms: Terms) -> dict[str, Any]:
    """Return the Secret with the authorities, for the operator alone. Its `ca.crt` is for people and Prometheus."""
    public = base64.b64encode(bundle(content, terms).encode()).decode()
    return kept_secret(namespace, name, COMPONENT, {**trust.render(content), CA: public})


def issued_secret(namespace: str, name: str, issued: Issued) -> dict[str, Any]:
    """Return a Secret with a certificate. No object owns it, because the ModelDeployments of a namespace share it."""
    return kept_secret(namespace, name, COMPONENT, issued.data())


def secured(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a slipway-server pod whose API requires TLS with client certificates; probes use their own port.

    The kubelet starts no container before the Secret exists.
    """
    server, *others = pod["containers"]
    ports = [{**port, "name": PORT_NAME} if port["name"] == "http" else port for port in server["ports"]]
    # Last, so that no argument of the user replaces them. An image that does not know them ends with a usage error.
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
