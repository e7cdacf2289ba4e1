"""Flags, environment, defaults."""

import pytest

from slipway_operator.manifests.network_policy import NetworkPolicySettings
from slipway_operator.outbound.addresses import EgressPolicy
from slipway_operator.settings import parse as parse_command
from tests.support.settings import parsed


def parse(arguments, environment):
    return parsed(parse_command, arguments, environment).settings


def test_defaults_run_the_whole_cluster():
    command = parsed(parse_command, [], {"POD_NAMESPACE": "slipway"})
    settings = command.settings
    assert (command.name, settings.namespaces, settings.workers) == ("run", (), 8)
    assert settings.endpoint == "http://slipway-gateway.slipway.svc/v1"
    assert (settings.hook_signing_key_file, settings.outbound) == (None, EgressPolicy())
    assert (settings.gateway_service, settings.resync_s, settings.admin_port) == ("slipway-gateway-admin", 300.0, 8001)


def test_flags_beat_the_environment_beats_defaults():
    environment = {"SLIPWAY_WORKERS": "3", "SLIPWAY_NAMESPACES": "a,b", "SLIPWAY_LOG_LEVEL": "DEBUG"}
    assert parse([], environment).workers == 3
    settings = parse(["--workers", "5"], environment)
    assert (settings.workers, settings.namespaces, settings.log_level) == (5, ("a", "b"), "debug")


def test_the_identity_is_the_pods_unless_it_is_named():
    assert parse([], {"POD_ID": "operator-1"}).identity == "operator-1"
    assert parse(["--identity", "me"], {"POD_ID": "operator-1"}).identity == "me"
    assert (parse([], {}).identity, parse([], {}).lease_name, parse([], {}).lease_s) == ("", "slipway-operator", 10.0)


@pytest.mark.parametrize(("word", "wanted"), [("true", True), ("false", False), ("on", True), ("off", False)])
def test_annotations_of_namespaces_are_a_switch(word, wanted):
    assert parse(["--name-annotations", word], {}).name_annotations is wanted


def test_where_the_cluster_is_comes_from_the_environment():
    settings = parse([], {"KUBECONFIG": "/k", "KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    assert (settings.kubeconfig, settings.api_server_host) == ("/k", "10.96.0.1")


def test_addresses_that_may_be_called_for_tenants():
    flags = [
        "--allowed-private-cidrs=10.96.0.0/12, fd00::/8",
        "--allowed-private-hosts=*.Tools.svc.,prom.monitoring.svc",
    ]
    outbound = parse(flags, {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}).outbound
    assert [str(network) for network in outbound.networks] == ["10.96.0.0/12", "fd00::/8"]
    assert outbound.hosts == ("*.tools.svc", "prom.monitoring.svc")
    assert [str(address) for address in outbound.control] == ["10.96.0.1"] and not outbound.loopback


def test_network_policies_need_the_selectors_of_the_release():
    assert parse([], {}).network_policy is None
    flags = [
        "--own-namespace=sys",
        "--network-policy-release=a/b=c,d=e",
        '--network-policy-metrics-peers=[{"podSelector": {}}]',
    ]
    assert parse(flags, {}).network_policy == NetworkPolicySettings(
        "sys", (("a/b", "c"), ("d", "e")), ({"podSelector": {}},)
    )


def test_explain_takes_a_target_and_a_namespace():
    command = parsed(parse_command, ["explain", "chat", "-n", "prod", "--workers", "3"])
    assert (command.name, command.target, command.namespace) == ("explain", "chat", "prod")
    assert command.settings.workers == 3


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--workers", "0"], {}, "--workers: '0' is less than 1"),
        ([], {"SLIPWAY_WORKERS": "many"}, "SLIPWAY_WORKERS: 'many' is not a whole number"),
        (["--resync-seconds", "0"], {}, "--resync-seconds: '0' is less than 1"),
        (["--allowed-private-cidrs", "10.0.0.1/8"], {}, "'10.0.0.1/8' is no address range: write for example 10."),
        (["--allowed-private-hosts", "10.0.0.1"], {}, "'10.0.0.1' is no host name: write for example prometheus."),
        (["--mlflow-url", "http://mlflow:99999"], {}, "it is no URL of a tracking server"),
        (["--allowed-private-hosts", "*"], {}, "'*' is no host name"),
        (
            ["--network-policy-release", "slipway"],
            {},
            "'slipway' has no value: write for example app.kubernetes.io/name=slipway",
        ),
        (["--network-policy-metrics-peers", "{}"], {}, "it must be a list of NetworkPolicyPeers"),
        (["--network-policy-metrics-peers", "["], {}, "this is no JSON"),
        (["--lease-seconds", "2"], {}, "--lease-seconds: '2' is less than 3"),
        (["--log-level", "loud"], {}, "--log-level: 'loud' is not one of"),
        (["--name-grants", "team-a"], {}, "team-a: write NAMESPACE=NAME,PREFIX*"),
        ([], {"SLIPWAY_NAME_GRANTS": "a=chat;b=x/y"}, "namespace b: 'x/y' is no model name"),
        (["--name-retention-seconds", "-1"], {}, "--name-retention-seconds: '-1' is less than 0"),
        (["--name-annotations", "maybe"], {}, "--name-annotations: 'maybe' is neither on nor off"),
        (
            ["--workers", "257"],
            {"SLIPWAY_RESYNC_SECONDS": "x"},
            "SECONDS: 'x' is not a number; --workers: '257'",
        ),
        (["explain"], {}, "required: FILE|NAME"),
        (["dance"], {}, "invalid choice: 'dance'"),
    ],
)
def test_invalid_setting_exits_with_a_message(arguments, environment, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(arguments, environment)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_version_and_help(capsys):
    for flag, expected in (("--version", "slipway-operator "), ("--help", "SLIPWAY_ADMIN_PORT")):
        with pytest.raises(SystemExit) as ended:
            parse([flag], {})
        assert ended.value.code == 0
        assert expected in capsys.readouterr().out
