"""Certificates of cert-manager, from which it makes the Secrets that the operator copies for gateways and pods."""

from collections.abc import Mapping
from typing import Any

from slipway_operator.model import labels
from slipway_operator.model.cluster.authorities import Terms
from slipway_operator.model.cluster.certificates import Role
from slipway_operator.model.issuing.issuer import IssuerRef

API_VERSION, KIND = "cert-manager.io/v1", "Certificate"
COMPONENT = "issued-certificates"  # by which people delete these, and not what the operator keeps itself
_HOUR_S = 3600


def requested(namespace: str, name: str, role: Role, issuer: IssuerRef, terms: Terms) -> dict[str, Any]:
    """Return the Certificate of a role; the Secret that cert-manager makes of it has the same name."""
    marks = {labels.MANAGED_BY: "slipway", labels.COMPONENT: COMPONENT}
    usages = ["digital signature", *["server auth"] * role.serves, *["client auth"] * role.connects]
    spec = {
        "secretName": name,
        "secretTemplate": {"labels": marks},
        "issuerRef": {"name": issuer.name, "kind": issuer.kind, "group": issuer.group},
        "dnsNames": [role.name],
        "usages": usages,
        "duration": _hours(terms.leaf_s),
        "renewBefore": _hours(terms.leaf_s - terms.renewal_s),
        # A key that leaked is of no use after the next renewal.
        "privateKey": {"algorithm": "ECDSA", "size": 256, "encoding": "PKCS8", "rotationPolicy": "Always"},
        "revisionHistoryLimit": 1,
    }
    metadata = {"name": name, "namespace": namespace, "labels": marks}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def is_as_requested(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a Certificate has all fields of `wanted`; others are the API server's or cert-manager's defaults."""
    return all(
        is_as_requested(found.get(name) or {}, value) if isinstance(value, Mapping) else found.get(name) == value
        for name, value in wanted.items()
    )


def _hours(seconds: float) -> str:
    """Return a duration as the API server writes it back."""
    return f"{round(seconds / _HOUR_S)}h0m0s"
