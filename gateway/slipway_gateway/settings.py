"""Settings of the process: flags, with SLIPWAY_GATEWAY_* as their defaults. Nothing else reads the environment."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .wire.request_fields import SHARE_SOURCES, STICKY_SOURCES, TENANT_SOURCES

ENV_PREFIX = "SLIPWAY_GATEWAY_"


def _setting(default: Any, help_: str) -> Any:
    return field(default=default, metadata={"help": help_})


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """One field per flag: `drain_timeout_s` is `--drain-timeout SECONDS` and SLIPWAY_GATEWAY_DRAIN_TIMEOUT."""

    routes: str = _setting("", "route by this file (YAML or JSON, reloaded when it changes) instead of a cluster")
    kubeconfig: str = _setting("", "kubeconfig file; default: the pod's service account, then ~/.kube/config")
    namespaces: tuple[str, ...] = _setting((), "namespaces to watch, comma-separated; default: all")
    state_dir: str = _setting("", "folder where the last table is kept for a restart; default: it is not kept")
    state_max_age_s: float = _setting(3600.0, "a kept table is used, while the API server does not answer")
    own_namespace: str = _setting("default", "namespace of the operator, where it keeps who owns which model name")
    names_configmap: str = _setting("slipway-model-names", "ConfigMap in the own namespace with the owners of names")
    host: str = _setting("", "address of the API port; default: every interface")
    port: int = _setting(8000, "port of the API")
    admin_host: str = _setting("", "address of the admin port; default: every interface")
    admin_port: int = _setting(8001, "port of /healthz, /readyz, /metrics, /internal/routes; keep it private")
    sticky_by: tuple[str, ...] = _setting(STICKY_SOURCES, "what ties requests to one revision: session, user, key")
    tenant_by: tuple[str, ...] = _setting(
        TENANT_SOURCES, "whom servers are fair between, and keep caches apart: key, user"
    )
    tenant_salt: str = _setting("", "secret of the tenants' names that servers see; the same at all gateways")
    priority_limit: int = _setting(
        0, "most urgent `priority` that clients may ask servers for, lower numbers run earlier; -1000: any"
    )
    max_inflight: int = _setting(4096, "requests at a time; above it 429")
    max_body_bytes: int = _setting(16 << 20, "largest request body; above it 413")
    memory_budget_bytes: int = _setting(
        0,
        "bodies, whole answers, tokens of streams, replay memory and mirrors together; above it 429; 0: a share of the "
        "container's memory limit (35 in 100), 256 MiB without one",
    )
    max_client_percentage: int = _setting(50, "of that, for the requests of one client; above it 429")
    share_by: tuple[str, ...] = _setting(
        SHARE_SOURCES, "who is one client for that: key, else address; address alone where clients may invent keys"
    )
    min_body_rate_bytes: int = _setting(1024, "a second, of a request body over any 10 s; below it 408; 0: any rate")
    max_header_bytes: int = _setting(16384, "largest header line; above it 431")
    header_timeout_s: float = _setting(15.0, "from the first byte of a request's head to its last")
    keepalive_timeout_s: float = _setting(75.0, "a connection without a request; longer than the load balancer's own")
    max_connections: int = _setting(8192, "of clients at a time; above it 503")
    max_connections_per_address: int = _setting(
        0, "of one address (of one /64 with IPv6) at a time; above it 429; 0: half of all, as behind an ingress"
    )
    max_attempts: int = _setting(3, "endpoints that one request may be sent to before its first byte")
    max_resumes: int = _setting(3, "servers that one stream may outlive; 0: a broken stream ends with an error event")
    max_held: int = _setting(256, "requests that may wait for an endpoint at a time")
    hold_timeout_s: float = _setting(5.0, "how long a request may wait for a ready endpoint before 503")
    wake_comment_s: float = _setting(
        5.0, "between comments to a stream that waits for a deployment that sleeps; 0: none"
    )
    resume_timeout_s: float = _setting(30.0, "how long a broken stream may wait for another server of its revision")
    remember_s: float = _setting(600.0, "how long tokens of a broken stream are kept for the client that comes back")
    max_remembered_bytes: int = _setting(64 << 20, "of these tokens together; beyond it the oldest go")
    connect_timeout_s: float = _setting(2.0, "to connect to an endpoint")
    warm_connections: int = _setting(2, "kept open to each ready endpoint of a revision without weight; 0: none")
    idle_timeout_s: float = _setting(600.0, "without a byte from the endpoint")
    request_timeout_s: float = _setting(3600.0, "a whole request")
    body_timeout_s: float = _setting(60.0, "to receive a request body")
    stall_timeout_s: float = _setting(60.0, "a client may leave its answer unread")
    hung_after_s: float = _setting(
        60.0, "silence of a stream's server that is an error to the judge; of a whole answer's, five times; 0: never"
    )
    mirror_max_inflight: int = _setting(16, "mirrored requests at a time; 0: nothing is mirrored")
    mirror_max_queue: int = _setting(64, "mirrored requests that may wait for their turn; more are dropped")
    mirror_max_bytes: int = _setting(32 << 20, "bodies and answers held for mirrored requests together")
    mirror_max_body_bytes: int = _setting(256 << 10, "largest request body that is mirrored")
    mirror_timeout_s: float = _setting(120.0, "a mirrored request's answer")
    mirror_compare_percentage: int = _setting(25, "of mirrored requests, whose answers are compared")
    consecutive_5xx: int = _setting(5, "answers of 5xx in a row that eject an endpoint; 0: never")
    consecutive_gateway_failure: int = _setting(5, "the same of failed connections, resets, 502, 503 and 504; 0: never")
    base_ejection_time_s: float = _setting(10.0, "an endpoint is ejected, times how often in a row")
    max_ejection_time_s: float = _setting(300.0, "at most")
    max_ejection_percent: int = _setting(50, "of a revision's endpoints, of which one always stays; 0: none")
    cut_off_failures: int = _setting(10, "failed tries in a row that cut a revision under test off; 0: never")
    cut_off_after_s: float = _setting(5.0, "how long it must fail like that; a dead pod is out of the table by then")
    cut_off_cooldown_s: float = _setting(60.0, "until a revision that was cut off is tried again")
    failsafe_ttl_s: float = _setting(
        0.0,
        "weights go back to the stable revision when nobody renews them for so long; 0: never; the operator asks "
        "at least every 300",
    )
    operator_token_file: str = _setting(
        "", "file with the operator's token: who has it may renew the failsafe's time; default: anybody who POSTs"
    )
    tenant_keys_file: str = _setting(
        "", "file with the keys that prove to servers whose request it is; default: nothing is proved"
    )
    drain_delay_s: float = _setting(5.0, "after SIGTERM, how long new requests are still taken")
    drain_timeout_s: float = _setting(600.0, "after that, how long running requests may take to finish")
    log_level: str = _setting("info", "debug, info, warning or error")
    allow_pure_python: bool = _setting(False, "start without aiohttp's C extensions")

    @classmethod
    def load(cls, argv: Sequence[str], env: Mapping[str, str]) -> "GatewaySettings":
        parser = _parser(env)
        settings = cls(**vars(parser.parse_args(argv)))
        chosen = (
            ("--sticky-by", settings.sticky_by, STICKY_SOURCES),
            ("--tenant-by", settings.tenant_by, TENANT_SOURCES),
            ("--share-by", settings.share_by, SHARE_SOURCES),
        )
        for flag, given, sources in chosen:
            if unknown := set(given) - set(sources):
                parser.error(f"{flag}: unknown {', '.join(sorted(unknown))}; choose from {', '.join(sources)}")
        percentages = ("mirror_compare_percentage", "max_client_percentage", "max_ejection_percent")
        for name in percentages:
            if not 0 <= getattr(settings, name) <= 100:
                parser.error(f"--{name.replace('_', '-')}: a number from 0 to 100")
        if settings.log_level.lower() not in {"debug", "info", "warning", "error"}:
            parser.error("--log-level: choose from debug, info, warning, error")
        return settings


def _parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slipway-gateway",
        description="The door for requests: routes them by model to ready revisions by weight, streams the answers.",
        epilog=f"Every flag can be set by environment: --drain-timeout is {ENV_PREFIX}DRAIN_TIMEOUT.",
    )
    for option in fields(GatewaySettings):
        _add(parser, option.name, option.default, option.metadata["help"], env)
    return parser


def _add(parser: argparse.ArgumentParser, name: str, default: Any, help_: str, env: Mapping[str, str]) -> None:
    flag = name.removesuffix("_s").replace("_", "-")
    given = env.get(ENV_PREFIX + name.removesuffix("_s").upper(), "")
    if name == "kubeconfig":
        given = given or env.get("KUBECONFIG", "")
    if name == "own_namespace":
        given = given or env.get("POD_NAMESPACE", "")
    if isinstance(default, bool):
        on = given.lower() in {"1", "true", "yes"}
        parser.add_argument(f"--{flag}", dest=name, action="store_true", default=on, help=help_)
        return
    shown = ",".join(default) if isinstance(default, tuple) else default
    parser.add_argument(
        f"--{flag}",
        dest=name,
        metavar=_metavar(name, default),
        # argparse runs `type` over a default only when it is text: so a bad variable is reported like a bad flag.
        type=_names if isinstance(default, tuple) else type(default),
        default=given or default,
        help=help_ if shown in ("", ()) else f"{help_} (default {shown})",
    )


def _metavar(name: str, default: Any) -> str:
    if name.endswith("_s"):
        return "SECONDS"
    if name.endswith("_bytes"):
        return "BYTES"
    kinds = {
        "routes": "FILE",
        "operator_token_file": "FILE",
        "tenant_keys_file": "FILE",
        "kubeconfig": "FILE",
        "log_level": "LEVEL",
        "tenant_salt": "SECRET",
        "state_dir": "FOLDER",
    }
    kinds |= {"own_namespace": "NAMESPACE", "names_configmap": "NAME"}
    return kinds.get(name, "NAME,…" if isinstance(default, tuple) else "N" if isinstance(default, int) else "ADDRESS")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
