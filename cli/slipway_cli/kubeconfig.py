"""How to reach the API server: by a kubeconfig, as kubectl reads it, else as the pod that we run in."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException, incluster_config, kube_config

from slipway_cli.access import Access
from slipway_cli.errors import Trouble

# They have no annotations.
_library: Any = kube_config
_incluster: Any = incluster_config
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MALFORMED = (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError)


@dataclass(frozen=True, slots=True)
class Target:
    """An API server, an identity and a namespace."""

    configuration: Configuration
    namespace: str
    context: str


def target(access: Access) -> Target:
    """Read the kubeconfig.

    Raises:
        Trouble: when there is none, or it makes no sense.
    """
    path = access.kubeconfig or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    configuration = Configuration()
    # One attempt: what may be tried again is decided where the answer is read.
    configuration.retries = False
    in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    try:
        if in_pod and not any(map(os.path.exists, path.split(os.pathsep))) and not access.context:
            _incluster.load_incluster_config(client_configuration=configuration)
            return Target(configuration, access.namespace or _pod_namespace(), "the pod's service account")
        with _credentials_plugin_heard():
            loader = _library.KubeConfigLoader(config_dict=_merged(path), active_context=access.context)
            loader.load_and_set(configuration)
    except _MALFORMED as error:
        said = " ".join(str(error).split())
        raise Trouble(f"no way to a cluster by {path}: {said}; name another file with --kubeconfig") from error
    current: dict[str, Any] = loader.current_context
    namespace = access.namespace or (current.get("context") or {}).get("namespace") or "default"
    return Target(configuration, namespace, current["name"])


def _merged(path: str) -> Any:
    merged = _library.KubeConfigMerger(path).config
    if merged is None:
        raise ConfigException("there is no such file" if os.pathsep not in path else "none of these files is there")
    return merged


def _pod_namespace() -> str:
    return _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.exists() else "default"


@contextmanager
def _credentials_plugin_heard() -> Iterator[None]:
    """The library only logs that a credentials plugin failed, and goes on as nobody: make it an error."""
    heard = _Listener(logging.ERROR)
    root = logging.getLogger()
    root.addHandler(heard)
    try:
        yield
    finally:
        root.removeHandler(heard)
    if heard.messages:
        raise ConfigException(f"its credentials cannot be had: {heard.messages[0]}")


class _Listener(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
