"""TLS inside the release: both processes get the same Secrets, the rights to them, and a port."""

import pytest

from slipway_gateway.settings import GatewaySettings
from slipway_operator import settings as operator_settings
from slipway_operator.kube.reading.gateways import PORT_NAME, TLS_PORT_NAME
from slipway_operator.manifests.pods.certificate import NAME
from tests.chart.rendered import Object, find, objects, of_kind
from tests.support.settings import POD, parsed

pytestmark = [pytest.mark.integration, pytest.mark.attack_class(2)]

ON = {"tls": {"internal": {"enabled": True}}}
NEW = {"tls": {"internal": {"enabled": True, "newRevisions": True}}}


def container(rendered: list[Object], name: str) -> Object:
    found: Object = find(rendered, "Deployment", name)["spec"]["template"]["spec"]["containers"][0]
    return found


def rules(rendered: list[Object]) -> list[tuple[str, list[str]]]:
    """Name and verbs for each named Secret."""
    found = [rule for role in of_kind(rendered, "Role", "ClusterRole") for rule in role["rules"]]
    return [
        (name, rule["verbs"])
        for rule in found
        if "secrets" in rule["resources"]
        for name in rule.get("resourceNames", ())
    ]


@pytest.mark.parametrize("values", [{}, {"tls": {"internal": {"enabled": False}}}])
def test_off_there_is_nothing_of_it(values: Object) -> None:
    rendered = objects(values=values)
    text = str([item for item in rendered if item["kind"] != "CustomResourceDefinition"])
    for word in ("internal-tls", "internal-ca", "tls-new-revisions", NAME, "8002"):
        assert word not in text


def test_gateways_mount_what_the_operator_writes() -> None:
    rendered = objects(values=ON, release="dock")
    operator = parsed(operator_settings.parse, container(rendered, "dock-slipway-operator")["args"], POD).settings
    gateway = parsed(GatewaySettings.parse, container(rendered, "dock-slipway-gateway")["args"])
    pod = find(rendered, "Deployment", "dock-slipway-gateway")["spec"]["template"]["spec"]
    [volume] = [one for one in pod["volumes"] if one["name"] == "internal-tls"]
    [mount] = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "internal-tls"]
    assert volume["secret"] == {"secretName": operator.gateway_tls_secret}
    assert mount == {"name": "internal-tls", "mountPath": gateway.internal_tls_dir, "readOnly": True}
    assert operator.internal_ca_secret == "dock-slipway-internal-ca"
    assert operator.tls_new_revisions is False


def test_pods_get_it_by_a_switch_of_their_own() -> None:
    args = container(objects(values=NEW), "slipway-operator")["args"]
    assert parsed(operator_settings.parse, args, POD).settings.tls_new_revisions is True


def test_the_operator_finds_the_port_by_its_name() -> None:
    rendered = objects(values=ON)
    ports = find(rendered, "Service", "slipway-gateway-admin")["spec"]["ports"]
    assert [(port["name"], port["port"]) for port in ports] == [(PORT_NAME, 8001), (TLS_PORT_NAME, 8002)]
    gateway = container(rendered, "slipway-gateway")
    assert {"name": TLS_PORT_NAME, "containerPort": 8002} in gateway["ports"]
    assert parsed(GatewaySettings.parse, gateway["args"]).internal_port == 8002


def test_the_operator_may_write_these_secrets_and_reads_none_of_a_namespace() -> None:
    found = rules(objects(values=ON))
    assert (NAME, ["create", "patch"]) in found
    assert ("slipway-internal-ca", ["get", "update"]) in found
    assert ("slipway-gateway-internal-tls", ["get", "update"]) in found


def test_only_the_operator_reaches_the_port() -> None:
    rendered = objects("ha", values=ON)
    ingress = find(rendered, "NetworkPolicy", "slipway-gateway")["spec"]["ingress"]
    [rule] = [rule for rule in ingress if rule["ports"] == [{"port": "internal"}]]
    operator = find(rendered, "Deployment", "slipway-operator")["spec"]["template"]["metadata"]["labels"]
    [peer] = rule["from"]
    assert peer["podSelector"]["matchLabels"].items() <= operator.items()


def test_prometheus_reads_pods_with_tls_and_without() -> None:
    values = {**ON, "metrics": {"podMonitor": {"enabled": True}}}
    [monitor] = of_kind(objects(values=values), "PodMonitor")
    endpoints = monitor["spec"]["podMetricsEndpoints"]
    assert [(one["port"], one.get("scheme", "http")) for one in endpoints] == [("http", "http"), ("https", "https")]
    assert endpoints[0]["relabelings"] == endpoints[1]["relabelings"]
