"""cert-manager: the chart's Certificate of the API port, and the operator's rights to Certificates of its own."""

from typing import Any

import pytest

from slipway_operator import settings as operator_settings
from slipway_operator.kube.secrets.certificates import CertificateSecrets
from slipway_operator.model.issuing.issuer import IssuerRef
from testkit.cluster.api import Api
from testkit.until import until
from tests.chart.rendered import NAMESPACE, Object, find, objects, of_kind
from tests.chart.test_internal_tls import ON, container
from tests.support.cert_manager import crds
from tests.support.settings import POD, parsed

pytestmark = [pytest.mark.integration, pytest.mark.attack_class(2)]

INTERNAL = {"tls": {"internal": {"enabled": True, "issuerRef": {"name": "internal"}}}}
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def public(**more: Any) -> Object:
    return {"gateway": {"tls": {"issuerRef": {"name": "public", "kind": "ClusterIssuer"}, **more}}}


def rules(values: Object, scenario: str = "default") -> list[Object]:
    """Of the operator, on Certificates, and on Secrets in its own namespace that it reads and does not keep."""
    roles = of_kind(objects(scenario, values=values), "Role", "ClusterRole")
    found = [(role, rule) for role in roles for rule in role["rules"]]
    return [
        rule
        for role, rule in found
        if rule["apiGroups"] == ["cert-manager.io"]
        or (role["metadata"]["name"].endswith("own-namespace") and rule["resources"] == ["secrets"])
    ]


def test_without_an_issuer_there_is_nothing_of_it() -> None:
    rendered = objects(values=ON)
    text = str([item for item in rendered if item["kind"] != "CustomResourceDefinition"])
    assert "cert-manager" not in text
    assert "internal-issuer" not in text


@pytest.mark.parametrize(("name", "secret"), [("", "slipway-gateway-tls"), ("own", "own")])
def test_the_gateway_mounts_the_secret_of_its_certificate_and_serves_https(name: str, secret: str) -> None:
    rendered = objects(values=public(secretName=name))
    certificate = find(rendered, "Certificate", secret)
    assert certificate["metadata"]["namespace"] == NAMESPACE
    assert certificate["spec"]["secretName"] == secret
    assert certificate["spec"]["issuerRef"] == {"name": "public", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    assert certificate["spec"]["dnsNames"] == [
        "slipway-gateway",
        f"slipway-gateway.{NAMESPACE}",
        f"slipway-gateway.{NAMESPACE}.svc",
        f"slipway-gateway.{NAMESPACE}.svc.cluster.local",
    ]
    pod = find(rendered, "Deployment", "slipway-gateway")["spec"]["template"]["spec"]
    [volume] = [one for one in pod["volumes"] if one["name"] == "tls"]
    assert volume["secret"] == {"secretName": secret}
    [port] = find(rendered, "Service", "slipway-gateway")["spec"]["ports"]
    assert (port["name"], port["port"]) == ("https", 443)
    assert f"--endpoint=https://slipway-gateway.{NAMESPACE}.svc/v1" in container(rendered, "slipway-operator")["args"]


def test_names_for_a_public_authority_stand_alone() -> None:
    [certificate] = of_kind(
        objects(values=public(dnsNames=["models.example.org", "*.models.example.org"])), "Certificate"
    )
    assert certificate["spec"]["dnsNames"] == ["models.example.org", "*.models.example.org"]


def test_cert_managers_own_schema_accepts_the_certificate(api: Api, namespace: str) -> None:
    [crd] = [one for one in crds() if one["spec"]["names"]["kind"] == "Certificate"]
    assert api.apply(f"{_CRDS}/{crd['metadata']['name']}", crd).ok
    [item] = of_kind(objects(namespace=namespace, values=public()), "Certificate")
    path = f"/apis/cert-manager.io/v1/namespaces/{namespace}/certificates"
    until(lambda: api.get(path), "Certificates are served", holds=lambda answer: answer.ok)
    answer = api.apply(f"{path}/{item['metadata']['name']}", item, dryRun="All", fieldValidation="Strict")
    assert answer.ok, answer.message


def test_the_operator_gets_the_issuer() -> None:
    values = {"tls": {"internal": {"enabled": True, "issuerRef": {"name": "pca", "kind": "X", "group": "pca.example"}}}}
    args = container(objects(values=values), "slipway-operator")["args"]
    assert parsed(operator_settings.parse, args, POD).settings.internal_issuer == IssuerRef("pca", "X", "pca.example")


def test_rights_come_with_the_issuer_and_name_what_can_be_named() -> None:
    before = rules(ON, "namespaced")
    added = [rule for rule in rules(INTERNAL, "namespaced") if rule not in before]
    names = CertificateSecrets("sys", "slipway-internal-ca", "slipway-gateway-internal-tls")
    own = [names.requested(role) for role in ("gateway", "operator", "pods-team-a", "pods-team-b")]
    assert added == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": own, "verbs": ["get"]},
        {"apiGroups": ["cert-manager.io"], "resources": ["certificates"], "verbs": ["list", "create"]},
        {"apiGroups": ["cert-manager.io"], "resources": ["certificates"], "resourceNames": own, "verbs": ["patch"]},
    ]


def test_where_all_namespaces_are_served_names_are_open_in_the_releases_namespace_alone() -> None:
    rendered = objects(values=INTERNAL)
    wide = [rule for role in of_kind(rendered, "ClusterRole") for rule in role["rules"]]
    assert not [rule for rule in wide if rule["apiGroups"] == ["cert-manager.io"]]
    assert [rule.get("resourceNames") for rule in wide if rule["resources"] == ["secrets"]] == [
        ["slipway-tenant-key"],
        ["slipway-pod-tls"],
    ]
    added = [rule for rule in rules(INTERNAL) if rule not in rules(ON)]
    assert [rule["verbs"] for rule in added] == [["get"], ["list", "create"], ["patch"]]
    assert not any("resourceNames" in rule for rule in added)
