"""How to reach the API server: by a kubeconfig, as kubectl reads it, else as the pod that we run in."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException, incluster_config, kube_config

from slipway_cli.cluster.access import Access, Connection
from slipway_cli.errors import CommandError
from slipway_cli.settings import environment

# These modules have no annotations.
_library: Any = kube_config
_incluster: Any = incluster_config
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MALFORMED = (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError)


def connect(access: Access) -> Connection:
    """Read the kubeconfig; in a pod without one, use the pod's service account.

    Raises:
        CommandError: when there is no kubeconfig, or it is invalid.
    """
    surroundings = environment()
    path = access.kubeconfig or surroundings.kubeconfig
    configuration = Configuration()
    # One attempt: the caller that reads the answer decides about retries.
    configuration.retries = False
    try:
        if surroundings.in_pod and not any(map(os.path.exists, path.split(os.pathsep))) and not access.context:
            _incluster.load_incluster_config(client_configuration=configuration)
            return Connection(configuration, access.namespace or _pod_namespace(), "the pod's service account")
        with _plugin_errors_raised():
            loader = _library.KubeConfigLoader(config_dict=_merged(path), active_context=access.context)
            loader.load_and_set(configuration)
    except _MALFORMED as error:
        reason = " ".join(str(error).split())
        raise CommandError(f"no way to a cluster by {path}: {reason}; name another file with --kubeconfig") from error
    current: dict[str, Any] = loader.current_context
    namespace = access.namespace or (current.get("context") or {}).get("namespace") or "default"
    return Connection(configuration, namespace, current["name"])


def _merged(path: str) -> Any:
    merged = _library.KubeConfigMerger(path).config
    if merged is None:
        raise ConfigException("there is no such file" if os.pathsep not in path else "none of these files is there")
    return merged


def _pod_namespace() -> str:
    return _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.exists() else "default"


@contextmanager
def _plugin_errors_raised() -> Iterator[None]:
    """The library only logs that a credentials plugin failed and continues without credentials: raise an error."""
    listener = _Listener(logging.ERROR)
    root = logging.getLogger()
    root.addHandler(listener)
    try:
        yield
    finally:
        root.removeHandler(listener)
    if listener.messages:
        raise ConfigException(f"its credentials cannot be had: {listener.messages[0]}")


class _Listener(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
