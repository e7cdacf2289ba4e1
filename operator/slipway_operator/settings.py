"""Settings and commands of the operator: `--admin-port` is SLIPWAY_ADMIN_PORT."""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from slipway_operator.manifests.network_policy import NetworkPolicySettings
from slipway_operator.model.cluster import names
from slipway_operator.model.cluster.cost import parse_prices
from slipway_operator.model.cluster.keys import MIN_ROTATION_S
from slipway_operator.model.deployment import admin_policy
from slipway_operator.model.deployment.admin_policy import AcceleratorType, AdminPolicy, PodPolicyRule
from slipway_operator.model.issuing.issuer import IssuerRef, parse_issuer
from slipway_operator.outbound.addresses import Address, EgressPolicy, Network, canonical, parse_hosts, parse_networks
from slipway_process import settings as process
from slipway_process import spans
from slipway_process.values import FilePath, Flag, Name, Names, OnOff, OptionalFile, Port, Switch, Variable, split_items

GATEWAY_SERVICE = "slipway-gateway-admin"
LEASE_MIN_S = 3.0  # a busy machine would lose a shorter one
# Flags in `explain --help`.
EXPLAINED = ("log_level", "own_namespace", "server_image", "predict_image", "cpu_image", "gateway_service", "endpoint")
# As the fetcher reads it, which gets the same URL.
_TRACKING_URL = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Pairs = tuple[tuple[str, str], ...]


def _of_text(parse: Callable[[str], Any]) -> BeforeValidator:
    """Parse the text of flags and variables; anything else is a value already."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _labels(text: str) -> Pairs:
    pairs = [item.partition("=") for item in split_items(text)]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise ValueError(f"{name!r} has no value: write for example app.kubernetes.io/name=slipway")
    return tuple((name, value) for name, _, value in pairs)


def _peers(text: str) -> tuple[dict[str, Any], ...]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"this is no JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        example = '[{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]'
        raise ValueError(f"it must be a list of NetworkPolicyPeers, for example {example}")
    return tuple(found)


def _grants(text: str) -> Pairs:
    pairs = [part.strip().partition("=") for part in text.split(";") if part.strip()]
    for namespace, equals, patterns in pairs:
        if not (namespace and equals and patterns):
            raise ValueError(f"{namespace}{equals}{patterns}: write NAMESPACE=NAME,PREFIX*")
    found = tuple((namespace, patterns) for namespace, _, patterns in pairs)
    problems = names.grants(found)[1]
    if problems:
        raise ValueError(problems[0])
    return found


def _prices(text: str) -> tuple[tuple[str, float], ...]:
    pairs = [item.partition("=") for item in split_items(text)]
    return parse_prices((name.strip(), price.strip()) for name, _, price in pairs)


def _tracking_url(text: str) -> str:
    url = text.rstrip("/")
    found = _TRACKING_URL.fullmatch(url)
    if url and (not found or len(url) > 256 or int((found[1] or ":0")[1:]) > 65_535):
        raise ValueError("it is no URL of a tracking server: write for example https://mlflow.example.com")
    return url


def _own_namespace() -> str:
    return _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else "default"


def product_version() -> str:
    """Return the version of the installed distribution."""
    try:
        return version("slipway")
    except PackageNotFoundError:
        return "0+unknown"


class OperatorSettings(process.ProcessSettings):
    """Reconciles ModelDeployments."""

    model_config = SettingsConfigDict(cli_prog_name="slipway-operator", env_prefix="SLIPWAY_", env_ignore_empty=True)
    seconds: ClassVar[str] = "_seconds"

    namespaces: Names = Field((), description="namespaces to serve; with a list, Roles in them are enough; without all")
    own_namespace: Annotated[Name, Variable("SLIPWAY_OWN_NAMESPACE", "POD_NAMESPACE")] = Field(
        default_factory=_own_namespace,
        description="namespace of the operator and its gateways; without one that of the service account, then default",
    )
    server_image: Annotated[str, Flag("IMAGE")] = Field(
        default_factory=lambda: f"slipway-server:{product_version()}",
        description="image of server and fetcher for new revisions without one, slipway-server:VERSION without this "
        "flag; running revisions keep theirs",
    )
    predict_image: Annotated[str, Flag("IMAGE")] = Field(
        "",
        description="the same for new revisions of the tasks predict and classify whose format is onnx, xgboost, "
        "lightgbm or skops: an image without torch; without this flag --server-image",
    )
    cpu_image: Annotated[str, Flag("IMAGE")] = Field(
        "",
        description="the same for new revisions whose pods get no accelerator: an image with torch's build for CPUs, "
        "some gigabytes smaller; without this flag --server-image",
    )
    image_pull_secrets: Names = Field(
        (),
        description="Secrets by which pods of new revisions pull their images, besides those of "
        "spec.engine.imagePullSecrets; they are looked up in the namespace of each ModelDeployment, and one that is "
        "not there is passed over",
    )
    standby_priority_class: Name = Field(
        "",
        description="PriorityClass of standby pods (spec.standbyReplicas) that are made from now on; without one that "
        "of their ModelDeployment's other pods",
    )
    spans_endpoint: spans.Endpoint = Field(
        "", description="OTLP receiver of spans of reconciles; without one there are none; the SDK reads more variables"
    )
    spans_service: spans.Service = Field(
        "", description="name of this service in its spans; without one slipway-operator"
    )
    gateway_service: Name = Field(GATEWAY_SERVICE, description="headless Service of the gateways' admin ports")
    endpoint: Annotated[str, Flag("URL")] = Field(
        "",
        description="base URL that status.endpoint shows; without one http://slipway-gateway.OWN-NAMESPACE.svc/v1",
    )
    resync_s: Annotated[float, Field(ge=1, allow_inf_nan=False), Flag("SECONDS")] = Field(
        300.0, description="time between two reconciles of every ModelDeployment"
    )
    workers: Annotated[int, Field(ge=1, le=256), Flag("N")] = Field(8, description="concurrent reconciles, up to 256")
    gateway_token_file: OptionalFile = Field(
        None,
        description="file whose first word proves the operator to gateways (their --operator-token-file), read for "
        "each call; without one the token of --keys-secret",
    )
    keys_secret: Name = Field(
        "",
        description="Secret in the own namespace with the release's keys, made and rotated by the operator; gateways "
        "prove tenants and know the operator by them; without one there are no keys",
    )
    internal_ca_secret: Name = Field(
        "",
        description="Secret in the own namespace with the release's certificate authorities, made and rotated by the "
        "operator; without one nothing inside the release has TLS",
    )
    gateway_tls_secret: Name = Field(
        "slipway-gateway-internal-tls",
        description="Secret in the own namespace with the gateways' certificate, with --internal-ca-secret",
    )
    internal_issuer: Annotated[IssuerRef | None, _of_text(parse_issuer), Flag("KIND[.GROUP]/NAME")] = Field(
        None,
        description="issuer of cert-manager, for example ClusterIssuer/internal, that signs these certificates in "
        "place of the release's authorities; an Issuer is in the own namespace",
    )
    tls_new_revisions: Switch = Field(
        False,
        description="pods of new revisions of slipway-server serve HTTPS to this release alone, with "
        "--internal-ca-secret; revisions that exist stay as they are",
    )
    tenant_status: Switch = Field(
        False, description="write the status of Tenants: use against limits, and conditions; needs rights on tenants"
    )
    audit: Switch = Field(
        False,
        description="record who changes ModelDeployments and Tenants, and decisions, as a chain of lines in the log",
    )
    audit_file: FilePath = Field(
        "",
        description="file that also has the records of --audit, across restarts; without one each process has a chain",
    )
    key_pepper_secret: Name = Field(
        "",
        description="Secret in the own namespace with the pepper of API keys, made by the operator; without one no "
        "pepper is made",
    )
    key_rotation_s: Annotated[float, Field(ge=MIN_ROTATION_S, allow_inf_nan=False), Flag("SECONDS")] = Field(
        30 * 86_400.0, description=f"how long a key signs before the next one; at least {MIN_ROTATION_S:.0f}"
    )
    hook_signing_key_file: OptionalFile = Field(
        None,
        description="file with the key that signs calls of hooks, read for each call; without one they are unsigned",
    )
    verdict_signing_key_file: OptionalFile = Field(
        None,
        description="PEM file with the private key, Ed25519 or ECDSA with P-256, that signs the verdicts of rollouts "
        "as in-toto statements, read for each one; without one they are unsigned",
    )
    allowed_private_cidrs: Annotated[
        tuple[Network, ...], _of_text(lambda text: parse_networks(split_items(text))), Flag("CIDR,...")
    ] = Field((), description="private address ranges that hooks and analyses may call")
    allowed_private_hosts: Annotated[
        tuple[str, ...], _of_text(lambda text: parse_hosts(split_items(text))), Flag("HOST,...")
    ] = Field((), description="names, a.b.svc or *.b.svc, whose private addresses hooks and analyses may call")
    mlflow_url: Annotated[str, _of_text(_tracking_url), Flag("URL")] = Field(
        "",
        description="MLflow tracking server whose registered models spec.model.uri may name by models:/; its host may "
        "be at a private address; without one there is no model registry",
    )
    mlflow_poll_s: Annotated[float, Field(ge=10, le=86_400, allow_inf_nan=False), Flag("SECONDS")] = Field(
        60.0, description="time between two looks at a registered model, a fifth of it left to chance"
    )
    mlflow_write_verdicts: Annotated[Literal["auto", "always", "never"], Flag("WHEN")] = Field(
        "auto",
        description="write verdicts of rollouts to the tags of versions: auto: with the credentials of "
        "spec.model.secretRef alone; always: without credentials too",
    )
    network_policy_release: Annotated[Pairs, _of_text(_labels), Flag("NAME=VALUE,...")] = Field(
        (),
        description="labels of the release's pods: a NetworkPolicy for each ModelDeployment lets gateways and operator "
        "with these labels connect to model pods; without labels there are no policies",
    )
    network_policy_metrics_peers: Annotated[tuple[dict[str, Any], ...], _of_text(_peers), Flag("JSON")] = Field(
        (), description="JSON list of NetworkPolicyPeers that may also read /metrics of model pods"
    )
    pod_policy: Annotated[tuple[PodPolicyRule, ...], _of_text(admin_policy.pod_policy), Flag("JSON")] = Field(
        admin_policy.DEFAULT_RULES,
        validate_default=True,
        description="JSON list of rules: images and fields of spec.pod that ModelDeployments of which namespaces may "
        "have; docs/placement.md describes them",
    )
    accelerator_types: Annotated[dict[str, AcceleratorType], _of_text(admin_policy.accelerator_types), Flag("JSON")] = (
        Field(
            default_factory=dict,
            description="JSON object of types for spec.resources.accelerator.type, in addition to the built-in ones",
        )
    )
    model_cache_namespaces: Names = Field(
        (), description="namespaces with a model cache on the nodes, for spec.model.cache: node"
    )
    metrics_api_service: Name = Field(
        "",
        description="Service in the own namespace through which the API server reaches the metrics API; without one it "
        "is not served",
    )
    metrics_api_port: Port = Field(8443, description="port of the metrics API: TLS, for the API server alone")
    metrics_api_owner: Name = Field(
        "", description="ClusterRole that owns the registrations of the metrics API: its deletion deletes them"
    )
    jobs_service: Name = Field(
        "",
        description="headless Service of the admin ports of jobs processes, for slipway_jobs_lines of the metrics API; "
        "without one there is no such metric",
    )
    control_api_port: Port = Field(
        0, description="port of the control API, by HTTPS; 0: it is not served; docs/control-api.md describes it"
    )
    control_api_cert_file: FilePath = Field(
        "", description="PEM file with the certificate of the control API, read again when it changes"
    )
    control_api_key_file: FilePath = Field(
        "", validate_default=True, description="PEM file with the private key of this certificate"
    )
    conversion_service: Name = Field(
        "",
        description="Service in the own namespace through which the API server reaches the conversion webhook of "
        "v1beta1, which the operator then names in the CRDs; without one v1beta1 is not served",
    )
    conversion_port: Port = Field(8445, description="port of the conversion webhook, by HTTPS, at every operator")
    conversion_ca_secret: Name = Field(
        "slipway-conversion-ca",
        description="Secret in the own namespace with the authority of its certificate, made and rotated by the "
        "operator",
    )
    engine_metrics_pods: Annotated[int, Field(ge=0, le=10_000), Flag("N")] = Field(
        0,
        description="how many pods of ModelDeployments without an autoscaler are scraped too, every 10 s, for the "
        "slipway_engine_* series of /metrics",
    )
    prices: Annotated[tuple[tuple[str, float], ...], _of_text(_prices), Flag("RESOURCE=PRICE,...")] = Field(
        (),
        description="price of an hour of each resource, for example nvidia.com/gpu=2.5,cpu=0.03,memory=0.004 (a core, "
        "a GiB), for slipway_cost_per_hour; without prices there is no cost",
    )
    names_configmap: Name = Field(
        "slipway-model-names", description="ConfigMap in the own namespace with the owners of model names"
    )
    name_retention_s: Annotated[float, Field(ge=0, allow_inf_nan=False), Flag("SECONDS")] = Field(
        86_400.0, description="how long a name stays reserved for its namespace after its ModelDeployment was deleted"
    )
    name_grants: Annotated[Pairs, _of_text(_grants), Flag("NAMESPACE=NAME,PREFIX*;...")] = Field(
        (), description="model names that only these namespaces may have"
    )
    name_annotations: OnOff = Field(
        True, description=f"off: the annotation {names.ANNOTATION} of a Namespace grants nothing"
    )
    lease_name: Name = Field("slipway-operator", description="Lease in the own namespace; only its holder writes")
    lease_s: Annotated[float, Field(ge=LEASE_MIN_S, allow_inf_nan=False), Flag("SECONDS")] = Field(
        10.0,
        description=f"time after which another operator takes over a dead operator's lease; at least {LEASE_MIN_S:.0f}",
    )
    identity: Annotated[Name, Variable("SLIPWAY_IDENTITY", "POD_ID")] = Field(
        "",
        description="holder of the lease, a random name without one; a restarted container with the same identity "
        "need not wait",
    )
    leader_label: Switch = Field(
        False,
        description="give the pod that --identity names the label slipway.dev/leader=true while its operator holds the "
        "lease, so that Services find it",
    )
    admin_port: Port = Field(8001, description="port of /livez, /readyz and /metrics")
    kubeconfig: Annotated[str, Flag(""), Variable("KUBECONFIG")] = Field(
        "", description="kubeconfig file; without one the pod's service account, then ~/.kube/config"
    )
    api_server_host: Annotated[str, Flag(""), Variable("KUBERNETES_SERVICE_HOST")] = Field(
        "", description="address of the API server's Service, set by the kubelet"
    )

    @field_validator("endpoint")
    @classmethod
    def _of_own_namespace(cls, endpoint: str, info: ValidationInfo) -> str:
        return endpoint or f"http://slipway-gateway.{info.data.get('own_namespace')}.svc/v1"

    @field_validator("internal_issuer")
    @classmethod
    def _with_authorities(cls, issuer: IssuerRef | None, info: ValidationInfo) -> IssuerRef | None:
        if issuer and not info.data.get("internal_ca_secret"):
            raise ValueError("it needs --internal-ca-secret, which has what processes trust")
        return issuer

    @field_validator("metrics_api_owner")
    @classmethod
    def _with_service(cls, owner: str, info: ValidationInfo) -> str:
        if not owner and info.data.get("metrics_api_service"):
            raise ValueError("--metrics-api-service needs it: the ClusterRole that owns the registrations")
        return owner

    @field_validator("control_api_key_file")
    @classmethod
    def _with_port(cls, key_file: str, info: ValidationInfo) -> str:
        if info.data.get("control_api_port") and not (info.data.get("control_api_cert_file") and key_file):
            raise ValueError("--control-api-port needs --control-api-cert-file and it: callers send tokens")
        return key_file

    @field_validator("leader_label")
    @classmethod
    def _with_identity(cls, on: bool, info: ValidationInfo) -> bool:
        if on and not info.data.get("identity"):
            raise ValueError("it needs --identity, the name of the own pod")
        return on

    @property
    def outbound(self) -> EgressPolicy:
        """The destinations that may be called for tenants."""
        return EgressPolicy(self.allowed_private_cidrs, self.allowed_private_hosts, self._api_server())

    @property
    def registry_outbound(self) -> EgressPolicy:
        """The same, and the tracking server."""
        host = urlsplit(self.mlflow_url).hostname or ""
        return replace(self.outbound, hosts=(*self.allowed_private_hosts, host)) if host else self.outbound

    @property
    def policy(self) -> AdminPolicy:
        """What pods may have, and the types of accelerators."""
        return AdminPolicy.of(self.pod_policy, self.accelerator_types, self.model_cache_namespaces)

    @property
    def network_policy(self) -> NetworkPolicySettings | None:
        """Settings of the NetworkPolicy; None: model pods get none."""
        if not self.network_policy_release:
            return None
        return NetworkPolicySettings(self.own_namespace, self.network_policy_release, self.network_policy_metrics_peers)

    def _api_server(self) -> tuple[Address, ...]:
        try:
            return (canonical(self.api_server_host),)
        except ValueError:
            return ()


@dataclass(frozen=True, slots=True)
class Command:
    """What to do: `run`, or `explain` a target."""

    name: str
    settings: OperatorSettings
    target: str = ""  # a file or the name of a ModelDeployment
    namespace: str = "default"  # of the name


def parse(arguments: Sequence[str]) -> Command:
    """Parse the command line; missing values come from `SLIPWAY_*`, then from defaults.

    Raises:
        SystemExit: 0 after --help and --version; 2 with one sentence about all invalid values.
    """
    parser = _parser()
    given = vars(parser.parse_args(_with_command(arguments)))
    name, target, namespace = given.pop("command"), given.pop("target", ""), given.pop("namespace", "default")
    return Command(name, process.read(OperatorSettings, given, parser.error), target, namespace)


def _with_command(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with a command: `run` is the default, also where there are only flags."""
    alone = not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version"))
    return ["run", *arguments] if alone else list(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slipway-operator",
        description="Launches models on Kubernetes: reconciles ModelDeployments. "
        "Every flag can be set in the environment: --admin-port is SLIPWAY_ADMIN_PORT.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"slipway-operator {product_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run = commands.add_parser("run", help="reconcile until SIGTERM (the default)", allow_abbrev=False)
    process.add_flags(run, OperatorSettings)
    explain = commands.add_parser(
        "explain",
        help="print Spec, Status, Observed and Plan of one ModelDeployment as JSON",
        description="Shows what the operator would do, and does nothing. "
        "FILE is a manifest, or what explain printed before; NAME is read from the cluster. "
        "It takes all flags of `run`.",
        allow_abbrev=False,
    )
    process.add_flags(explain, OperatorSettings, shown=EXPLAINED)
    explain.add_argument(
        "target",
        metavar="FILE|NAME",
        help="a file with a ModelDeployment, or the name of one; NAME.adapter: a ModelAdapter",
    )
    explain.add_argument("-n", "--namespace", default="default", help="namespace of NAME (default: %(default)s)")
    return parser
