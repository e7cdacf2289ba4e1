"""Settings of the console: `--api-server` is SLIPWAY_CONSOLE_API_SERVER."""

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_settings import SettingsConfigDict

from slipway_process.settings import ProcessSettings
from slipway_process.values import Address, FilePath, Flag, Name, Names, OnOff, Port, PositiveCount, Seconds

LONGEST_SESSION_S = 3600.0
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class UnusableSettings(ValueError):
    """Settings that do not go together."""


def _https_url(url: str) -> str:
    if not url.startswith("https://") or url.endswith("/"):
        raise ValueError("must begin with https:// and end without a slash: viewers' tokens are sent to it")
    return url


def _issuer_url(url: str) -> str:
    where = urlsplit(url)
    if url and (where.scheme != "https" or not where.hostname or where.query or where.fragment):
        raise ValueError("must begin with https://, and have no query: codes and tokens come from it")
    return url


def _jobs_url(url: str) -> str:
    if url and (not url.startswith(("http://", "https://")) or url.endswith("/")):
        raise ValueError("must begin with http:// or https:// and end without a slash")
    return url


def _networks(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        ipaddress.ip_network(text)
    return texts


def _public_url(url: str) -> str:
    where = urlsplit(url)
    is_safe = where.scheme == "https" or (where.scheme == "http" and where.hostname in LOCAL_HOSTS)
    if url and (not is_safe or not where.hostname or where.path or where.query or where.fragment):
        raise ValueError("must be https://HOST, or http://localhost:PORT, without a path")
    return url


class ConsoleSettings(ProcessSettings):
    """Shows deployments and the evidence about their rollouts in a browser, with the rights of its viewer alone."""

    model_config = SettingsConfigDict(
        cli_prog_name="slipway-console", env_prefix="SLIPWAY_CONSOLE_", env_ignore_empty=True
    )

    host: Address = Field("", description="address of the port for browsers; without one every interface")
    port: Port = Field(8040, description="port for browsers: HTTPS with --tls-cert-file, else plain HTTP")
    tls_cert_file: FilePath = Field(
        "", description="PEM certificate of that port, read again when it changes; without one `kubectl port-forward`"
    )
    tls_private_key_file: FilePath = Field("", description="private key of that certificate")
    admin_host: Address = Field("", description="address of the admin port; without one every interface")
    admin_port: Port = Field(8041, description="port of /healthz and /readyz")
    api_server: Annotated[str, AfterValidator(_https_url), Flag("URL")] = Field(
        "https://kubernetes.default.svc", description="the API server, which gets the token of each viewer"
    )
    api_server_ca_file: FilePath = Field(
        "", description="certificates that the API server is verified by; without them the system's"
    )
    api_timeout_s: Seconds = Field(10.0, gt=0, description="time of one call to the API server")
    public_url: Annotated[str, AfterValidator(_public_url), Flag("URL")] = Field(
        "", description="where browsers open the console: the identity provider leads them back there"
    )
    oidc_issuer: Annotated[str, AfterValidator(_issuer_url), Flag("URL")] = Field(
        "", description="identity provider at which viewers sign in; without one they paste tokens"
    )
    oidc_client_id: Name = Field("", description="the console as a client there, which the API server has to accept")
    oidc_client_secret_file: FilePath = Field(
        "", description="secret of that client; without one it is a public client, by PKCE alone"
    )
    oidc_scopes: Names = Field(
        ("openid", "profile", "email"), description="what the console requests for the ID token; openid is among them"
    )
    oidc_ca_file: FilePath = Field(
        "", description="certificates that the identity provider is verified by; without them the system's"
    )
    jobs_url: Annotated[str, AfterValidator(_jobs_url), Flag("URL")] = Field(
        "", description="base URL of the jobs process, which gets the token of each viewer of batches; without one none"
    )
    secure_cookie: OnOff = Field(
        True,
        description="whether browsers send the session by HTTPS alone, or to localhost; off for plain HTTP elsewhere",
    )
    session_s: Annotated[Seconds, Field(ge=60, le=LONGEST_SESSION_S)] = Field(
        LONGEST_SESSION_S, description="time after which a viewer signs in again"
    )
    trusted_proxies: Annotated[Names, AfterValidator(_networks), Flag("CIDR,...")] = Field(
        (),
        description="networks of proxies whose X-Forwarded-For names their clients; their connections have no "
        "share of one address",
    )
    max_connections: PositiveCount = Field(
        1024, description="connections of browsers; the last quarter is for addresses that have none"
    )
    max_sessions: PositiveCount = Field(
        256, description="sessions in memory; the last quarter is for users that have none"
    )
    max_streams: PositiveCount = Field(
        64, description="pages that are kept up to date at once; the last quarter is for users that have none"
    )
    max_api_calls: PositiveCount = Field(
        32, description="calls to the API server at once; the last quarter is for users that have none"
    )
    poll_s: Annotated[Seconds, Field(ge=1)] = Field(
        2.0, description="time between two looks at what an open page shows"
    )
