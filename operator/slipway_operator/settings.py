"""Flags and environment of the operator as one frozen value; read only by `__main__`."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from slipway_operator.manifests.fence import FenceSettings
from slipway_operator.model.cluster import names
from slipway_operator.model.cluster.keys import MIN_ROTATION_S
from slipway_operator.outbound.addresses import Address, Network, Policy, canonical, parse_hosts, parse_networks

GATEWAY_SERVICE = "slipway-gateway-admin"
LEASE_MIN_S = 3.0  # below, a busy machine loses it


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be chosen from outside."""

    command: str  # run | explain
    own_namespace: str
    namespaces: tuple[str, ...]  # empty: the whole cluster
    server_image: str
    gateway_service: str
    endpoint: str
    resync_s: float
    workers: int
    admin_port: int
    lease_name: str
    lease_s: float
    identity: str
    log_level: str
    hook_signing_key_file: Path | None = None
    outbound: Policy = field(default_factory=Policy)  # what may be called for tenants
    fence: FenceSettings | None = None  # None: model pods get no NetworkPolicy
    gateway_token_file: Path | None = None  # the first word in it proves to gateways that the operator asks
    keys_secret: str = ""  # empty: the release has no keys
    key_rotation_s: float = 30 * 86_400.0
    metrics_api_service: str = ""  # empty: the metrics API is not served
    metrics_api_port: int = 8443
    metrics_api_owner: str = ""
    names_configmap: str = "slipway-model-names"
    name_retention_s: float = 86_400.0
    name_grants: tuple[tuple[str, str], ...] = ()  # namespace and its names with commas
    name_annotations: bool = True
    target: str = ""  # explain: a file or the name of a ModelDeployment
    target_namespace: str = "default"


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Read the command line; what it leaves open comes from `SLIPWAY_*`, then from defaults.

    Raises:
        SystemExit: for --help, --version and mistakes, as argparse does.
    """
    chosen = _parser(environment).parse_args(_with_command(arguments))
    return Settings(
        command=chosen.command,
        own_namespace=chosen.own_namespace,
        namespaces=tuple(name for name in chosen.namespaces.split(",") if name),
        server_image=chosen.server_image,
        gateway_service=chosen.gateway_service,
        endpoint=chosen.endpoint or f"http://slipway-gateway.{chosen.own_namespace}.svc/v1",
        resync_s=chosen.resync_seconds,
        workers=chosen.workers,
        admin_port=chosen.admin_port,
        lease_name=chosen.lease_name,
        lease_s=chosen.lease_seconds,
        identity=chosen.identity,
        log_level=chosen.log_level.upper(),
        hook_signing_key_file=Path(chosen.hook_signing_key_file) if chosen.hook_signing_key_file else None,
        outbound=Policy(chosen.allowed_private_cidrs, chosen.allowed_private_hosts, _api_server(environment)),
        fence=_fence(chosen),
        gateway_token_file=Path(chosen.gateway_token_file) if chosen.gateway_token_file else None,
        keys_secret=chosen.keys_secret,
        key_rotation_s=chosen.key_rotation_seconds,
        metrics_api_service=chosen.metrics_api_service,
        metrics_api_port=chosen.metrics_api_port,
        metrics_api_owner=chosen.metrics_api_owner,
        names_configmap=chosen.names_configmap,
        name_retention_s=chosen.name_retention_seconds,
        name_grants=chosen.name_grants,
        name_annotations=chosen.name_annotations == "true",
        target=getattr(chosen, "target", ""),
        target_namespace=getattr(chosen, "namespace", "default"),
    )


def product_version() -> str:
    """Version of the installed distribution."""
    try:
        return version("slipway")
    except PackageNotFoundError:
        return "0+unknown"


def _with_command(arguments: Sequence[str]) -> list[str]:
    """`run` is the default command, and the only one that flags alone can mean."""
    alone = not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version"))
    return ["run", *arguments] if alone else list(arguments)


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slipway-operator",
        description="Launches models on Kubernetes: reconciles ModelDeployments. "
        "Every flag can be set in the environment: --admin-port is SLIPWAY_ADMIN_PORT.",
    )
    parser.add_argument("--version", action="version", version=f"slipway-operator {product_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    shared = _shared_flags(environment)
    run = commands.add_parser("run", parents=[shared], help="reconcile until SIGTERM (the default)")
    _add_run_flags(run, environment)
    explain = commands.add_parser(
        "explain",
        parents=[shared],
        help="print Spec, Status, Observed and Plan of one ModelDeployment as JSON",
        description="Shows what the operator would do, and does nothing. "
        "FILE is a manifest, or what explain printed before; NAME is read from the cluster.",
    )
    _add_run_flags(explain, environment, hidden=True)
    explain.add_argument("target", metavar="FILE|NAME", help="a file with a ModelDeployment, or the name of one")
    explain.add_argument("-n", "--namespace", default="default", help="namespace of NAME (default: %(default)s)")
    return parser


def _shared_flags(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    own = _own_namespace(environment)
    flags = argparse.ArgumentParser(add_help=False)
    add = _Adder(flags, environment)
    add("--own-namespace", own, "namespace of the operator and its gateways (default: %(default)s)")
    add(
        "--server-image",
        f"slipway-server:{product_version()}",
        "image of server and fetcher for new revisions that name none (default: %(default)s)",
    )
    add("--gateway-service", GATEWAY_SERVICE, "headless Service of the gateways' admin ports (default: %(default)s)")
    add("--endpoint", "", "base URL shown in status.endpoint (default: http://slipway-gateway.OWN-NAMESPACE.svc/v1)")
    add("--log-level", "info", "debug, info, warning or error (default: %(default)s)", choices=_LEVELS, type=str.lower)
    return flags


def _add_run_flags(parser: argparse.ArgumentParser, environment: Mapping[str, str], hidden: bool = False) -> None:
    add = _Adder(parser, environment, hidden)
    add("--namespaces", "", "comma-separated namespaces to serve (default: all of the cluster)")
    add(
        "--resync-seconds",
        300.0,
        "time between two looks at every ModelDeployment (default: %(default)s)",
        type=_seconds,
    )
    add("--workers", 8, "reconciles at the same time (default: %(default)s)", type=_count)
    add("--hook-signing-key-file", "", "file with the key that calls of webhooks are signed with (default: unsigned)")
    add(
        "--allowed-private-cidrs",
        "",
        "comma-separated private address ranges that webhooks and analyses may call (default: none)",
        type=_networks,
    )
    add(
        "--allowed-private-hosts",
        "",
        "comma-separated names (a.b.svc, *.b.svc) whose private addresses webhooks and analyses may call "
        "(default: none)",
        type=_hosts,
    )
    add(
        "--fence-release",
        "",
        "labels NAME=VALUE,... of the gateways' and operator's pods, which alone may connect to model pods "
        "(default: model pods get no NetworkPolicy)",
        type=_pairs,
    )
    add(
        "--fence-metrics-peers",
        "[]",
        "who else may read /metrics of model pods: a JSON list of NetworkPolicyPeers (default: nobody)",
        type=_peers,
    )
    add(
        "--metrics-api-service", "", "Service by which the API server finds our metrics API (default: it is not served)"
    )
    add("--metrics-api-port", 8443, "port of the metrics API (default: %(default)s)", type=int)
    add("--metrics-api-owner", "", "ClusterRole with which the registrations of the metrics API are removed")
    _add_key_flags(add)
    _add_name_flags(add)
    add("--admin-port", 8001, "port of /livez, /readyz and /metrics (default: %(default)s)", type=int)
    add(
        "--lease-name", "slipway-operator", "Lease in the own namespace; its holder alone writes (default: %(default)s)"
    )
    add(
        "--lease-seconds",
        20.0,
        "time after which the lease of an operator that died is taken over (default: %(default)s)",
        type=_lease_seconds,
    )
    add("--identity", environment.get("POD_ID", ""), "holder of the lease (default: $POD_ID, else a random name)")


def _add_key_flags(add: "_Adder") -> None:
    add(
        "--gateway-token-file",
        "",
        "file with the token by which gateways know the operator, their --operator-token-file "
        "(default: of --keys-secret)",
    )
    add(
        "--keys-secret",
        "",
        "Secret in the own namespace with the keys by which gateways prove tenants to model pods and know the "
        "operator; made and rotated here (default: none)",
    )
    add(
        "--key-rotation-seconds",
        30 * 86_400.0,
        "how long a key signs before the next one (default: %(default)s)",
        type=_rotation,
    )


def _add_name_flags(add: "_Adder") -> None:
    add(
        "--names-configmap",
        "slipway-model-names",
        "ConfigMap in the own namespace that says who owns which model name (default: %(default)s)",
    )
    add(
        "--name-retention-seconds",
        86_400.0,
        "how long a model name stays its namespace's when its ModelDeployment is deleted (default: %(default)s)",
        type=_duration,
    )
    add(
        "--name-grants",
        "",
        "model names that only these namespaces may have: NAMESPACE=NAME,PREFIX*;NAMESPACE=... (default: none)",
        type=_grants,
    )
    add(
        "--name-annotations",
        "true",
        f"false: the annotation {names.ANNOTATION} of a Namespace grants nothing (default: %(default)s)",
        choices=("true", "false"),
    )


class _Adder:
    """Adds flags whose defaults the environment may set."""

    def __init__(self, parser: argparse.ArgumentParser, environment: Mapping[str, str], hidden: bool = False) -> None:
        self._parser, self._environment, self._hidden = parser, environment, hidden

    def __call__(self, flag: str, default: object, text: str, **options: object) -> None:
        variable = "SLIPWAY_" + flag.lstrip("-").upper().replace("-", "_")
        # A string default goes through `type` too, so a malformed variable is reported like a malformed flag.
        chosen = self._environment.get(variable) or default
        self._parser.add_argument(flag, default=chosen, help=argparse.SUPPRESS if self._hidden else text, **options)  # type: ignore[arg-type]


_LEVELS = ("debug", "info", "warning", "error")
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def _own_namespace(environment: Mapping[str, str]) -> str:
    if environment.get("POD_NAMESPACE"):
        return environment["POD_NAMESPACE"]
    return _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else "default"


def _api_server(environment: Mapping[str, str]) -> tuple[Address, ...]:
    """Its Service's address, which the kubelet tells every pod."""
    try:
        return (canonical(environment.get("KUBERNETES_SERVICE_HOST", "")),)
    except ValueError:
        return ()


def _fence(chosen: argparse.Namespace) -> FenceSettings | None:
    if not chosen.fence_release:
        return None
    return FenceSettings(chosen.own_namespace, chosen.fence_release, chosen.fence_metrics_peers)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [item.partition("=") for item in _items(text)]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise argparse.ArgumentTypeError(f"{name!r} has no value: write for example app.kubernetes.io/name=slipway")
    return tuple((name, value) for name, _, value in pairs)


def _peers(text: str) -> tuple[dict[str, Any], ...]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"this is no JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise argparse.ArgumentTypeError("it must be a list of NetworkPolicyPeers, for example [{'podSelector': {}}]")
    return tuple(found)


def _networks(text: str) -> tuple[Network, ...]:
    try:
        return parse_networks(_items(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _hosts(text: str) -> tuple[str, ...]:
    try:
        return parse_hosts(_items(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 1 on")
    return float(text)


def _duration(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return float(text)


def _rotation(text: str) -> float:
    if _duration(text) < MIN_ROTATION_S:
        raise argparse.ArgumentTypeError(f"{text} is too short: name at least {MIN_ROTATION_S:.0f} seconds")
    return float(text)


def _grants(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.strip().partition("=") for part in text.split(";") if part.strip()]
    for namespace, equals, patterns in pairs:
        if not (namespace and equals and patterns):
            raise argparse.ArgumentTypeError(f"{namespace}{equals}{patterns}: write NAMESPACE=NAME,PREFIX*")
    found = tuple((namespace, patterns) for namespace, _, patterns in pairs)
    problems = names.grants(found)[1]
    if problems:
        raise argparse.ArgumentTypeError(problems[0])
    return found


def _lease_seconds(text: str) -> float:
    if _seconds(text) < LEASE_MIN_S:
        raise argparse.ArgumentTypeError(f"{text} is too short: name at least {LEASE_MIN_S:.0f} seconds")
    return float(text)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to 256")
    return int(text)
