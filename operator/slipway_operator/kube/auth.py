"""Address and credentials of the API server, for our own calls and for the watches."""

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as _config

_BEARER = "BearerToken"

kubernetes_config: Any = _config  # the module has no type annotations


class ConfigMissing(Exception):
    """There is neither a kubeconfig nor a service account."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Address of the API server, and credentials that are valid now; a token may be rotated later."""

    server: str
    ca_path: str | None
    token: str | None
    certificate_path: str | None
    key_path: str | None
    insecure: bool
    proxy: str | None


async def load(kubeconfig: str = "", *, in_pod: bool = False) -> kubernetes_client.Configuration:
    """Return the configuration of a kubeconfig, else of the pod we run in, else of ~/.kube/config.

    Raises:
        ConfigMissing: when there is none of them.
    """
    configuration = kubernetes_client.Configuration()
    try:
        if in_pod and not kubeconfig:
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        else:
            await kubernetes_config.load_kube_config(
                config_file=kubeconfig or _usual_kubeconfig(), client_configuration=configuration
            )
    except kubernetes_config.ConfigException as error:
        raise ConfigMissing(f"no way to reach a Kubernetes API server: {error}") from error
    # The proxy is looked up once. With trust_env the library's session looks for a proxy before each call, and in a
    # thread for a .netrc, which takes as long as the call.
    configuration.proxy = configuration.proxy or _proxy(configuration.host)
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


async def credentials(configuration: kubernetes_client.Configuration) -> Credentials:
    """Return the current credentials; a service account's token is read again when it may have changed."""
    token = await configuration.get_api_key_with_prefix(_BEARER)
    return Credentials(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        # The library stores the whole header value, `Bearer` or `bearer` included.
        token=token.split(" ", 1)[-1].strip() if token else None,
        certificate_path=configuration.cert_file,
        key_path=configuration.key_file,
        insecure=not configuration.verify_ssl,
        proxy=configuration.proxy,
    )


def _proxy(url: str) -> str | None:
    """Return the environment's proxy for this URL (HTTPS_PROXY and the like), unless NO_PROXY contains its host."""
    address = urlsplit(url)
    if address.hostname and proxy_bypass(address.hostname):
        return None
    return getproxies().get(address.scheme)


def _usual_kubeconfig() -> str:
    # The library sets its default at import, from an environment that tools may change later.
    return os.path.expanduser("~/.kube/config")
