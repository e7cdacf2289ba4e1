"""The chart starts the processes with flags that they have, on the ports that they use."""

import pytest

from slipway_console.settings import ConsoleSettings
from slipway_gateway.settings import GatewaySettings
from slipway_operator.settings import OperatorSettings, parse
from tests.chart.rendered import NAMESPACE, find, objects
from tests.contract.documented import ports
from tests.support.settings import POD, parsed

pytestmark = pytest.mark.integration

SCENARIOS = ("default", "ha", "namespaced")


def _container(scenario: str, component: str, **values: object) -> dict:
    deployment = find(objects(scenario, values=values), "Deployment", f"slipway-{component}")
    return deployment["spec"]["template"]["spec"]["containers"][0]


def _operator(arguments: list[str], environment: dict[str, str] | None = None) -> OperatorSettings:
    command = parsed(parse, arguments, POD | (environment or {}))
    assert command.name == "run"
    return command.settings


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_operator_parses_its_flags(scenario: str) -> None:
    settings = _operator(_container(scenario, "operator")["args"], {"POD_NAMESPACE": NAMESPACE})
    assert settings.own_namespace == NAMESPACE
    assert settings.gateway_service == "slipway-gateway-admin"
    assert settings.endpoint == f"http://slipway-gateway.{NAMESPACE}.svc/v1"
    assert settings.lease_name == "slipway-operator"
    assert settings.server_image == "slipway-server:0.1.0"
    assert settings.namespaces == (("team-a", "team-b") if scenario == "namespaced" else ())


@pytest.mark.parametrize(("value", "setting"), [("predictImage", "predict_image"), ("cpuImage", "cpu_image")])
def test_a_smaller_image_is_used_only_where_it_is_named(value: str, setting: str) -> None:
    images = {}
    for repository in ("", "registry/small"):
        chosen = _container("default", "operator", server={value: {"repository": repository, "tag": "7"}})
        images[repository] = getattr(_operator(chosen["args"], {"POD_NAMESPACE": NAMESPACE}), setting)
    assert images == {"": "", "registry/small": "registry/small:7"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_gateway_parses_its_flags(scenario: str) -> None:
    settings = parsed(GatewaySettings.parse, _container(scenario, "gateway")["args"])
    assert settings.drain_timeout_s == (1800 if scenario == "ha" else 600)
    assert settings.namespaces == (("team-a", "team-b") if scenario == "namespaced" else ())


def test_defaults_of_the_chart_are_those_of_the_gateway() -> None:
    keys = "/etc/slipway/keys"
    chosen = {
        "own_namespace": NAMESPACE,
        "state_dir": "/var/lib/slipway-gateway",
        "operator_token_file": f"{keys}/operator-token",
        "tenant_keys_file": f"{keys}/tenant.json",
        "key_pepper_file": "/etc/slipway/key-pepper/pepper",
        "gateway_service": "slipway-gateway",
        "access_log": "stdout",
    }
    default = parsed(GatewaySettings.parse).model_copy(update=chosen)
    assert parsed(GatewaySettings.parse, _container("default", "gateway")["args"]) == default


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_log_levels_of_the_chart_are_known(level: str) -> None:
    operator = _container("default", "operator", operator={"logLevel": level})["args"]
    gateway = _container("default", "gateway", gateway={"logLevel": level})["args"]
    assert _operator(operator).log_level == parsed(GatewaySettings.parse, gateway).log_level == level


def test_defaults_of_the_chart_are_those_of_the_console() -> None:
    chosen = {"api_server_ca_file": "/etc/slipway/api-server-ca/ca.crt"}
    default = parsed(ConsoleSettings.parse).model_copy(update=chosen)
    arguments = _container("default", "console", console={"enabled": True})["args"]
    assert parsed(ConsoleSettings.parse, arguments) == default


@pytest.mark.parametrize("component", ["operator", "gateway", "console"])
def test_ports_are_the_documented_ones(component: str) -> None:
    container = _container("default", component, console={"enabled": True})
    found = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert found == {name: number for (process, name), number in ports().items() if process == component}


@pytest.mark.parametrize("component", ["operator", "gateway"])
def test_service_links_set_no_setting(component: str) -> None:
    """A Service named slipway-gateway would else put SLIPWAY_GATEWAY_PORT=tcp://… into the pods' environment."""
    deployment = find(objects(), "Deployment", f"slipway-{component}")
    assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_operator_parses_the_flags_of_its_hooks() -> None:
    hooks = {"signingSecret": {"name": "hook-key"}}
    outbound = {"allowedCIDRs": ["10.96.0.0/12", "fd00::/64"], "allowedHosts": ["*.tools.svc", "prom.monitoring.svc"]}
    values = {"hooks": hooks, "outbound": outbound, "verdicts": {"signingSecret": {"name": "verdict-key"}}}
    settings = _operator(_container("default", "operator", operator=values)["args"])
    assert str(settings.hook_signing_key_file) == "/etc/slipway/hooks/signing-key"
    assert str(settings.verdict_signing_key_file) == "/etc/slipway/verdicts/private.pem"
    assert [str(network) for network in settings.outbound.networks] == outbound["allowedCIDRs"]
    assert list(settings.outbound.hosts) == outbound["allowedHosts"]


@pytest.mark.parametrize("grants", [{}, {"team-a": ["chat", "team-a-*"], "team-b": ["*"]}])
def test_both_look_for_the_owners_of_names_in_the_object_that_the_chart_makes(grants: dict) -> None:
    values = {"names": {"grants": grants, "retentionSeconds": 60, "namespaceAnnotations": False}}
    operator = _operator(_container("default", "operator", **values)["args"], {"POD_NAMESPACE": NAMESPACE})
    gateway = parsed(GatewaySettings.parse, _container("default", "gateway")["args"])
    assert operator.names_configmap == gateway.names_configmap == "slipway-model-names"
    assert operator.own_namespace == gateway.own_namespace == NAMESPACE
    assert "data" not in find(objects(), "ConfigMap", "slipway-model-names")
    assert operator.name_grants == tuple((namespace, ",".join(names)) for namespace, names in grants.items())
    assert (operator.name_retention_s, operator.name_annotations) == (60.0, False)
