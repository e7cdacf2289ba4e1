"""The environment of the command line. Its options are click's (`commands/options.py`)."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CliEnvironment:
    """What kubectl reads too."""

    kubeconfig: str  # paths as in $KUBECONFIG
    in_pod: bool


def environment() -> CliEnvironment:
    """Reads the environment variables as they are now."""
    kubeconfig = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    return CliEnvironment(kubeconfig, bool(os.environ.get("KUBERNETES_SERVICE_HOST")))
