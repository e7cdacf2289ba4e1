"""kubectl and helm: from PATH when new enough, else devcluster's own builds."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.places import places
from devcluster.tools import tool as devcluster_tool
from testkit.cluster.api import KubeError


def tool(name: str) -> str:
    """Path of kubectl or helm: as devcluster finds them, else whatever PATH has.

    Raises:
        KubeError: when there is none; its message is how to get it.
    """
    try:
        return str(devcluster_tool(places(), name))
    except DevclusterError as error:
        if found := shutil.which(name):
            return found
        raise KubeError(f"no {name} here: {error}") from error


def run(command: Sequence[str], stdin: str | None = None, timeout_s: float = 60) -> str:
    """Output of a command; its own words when it fails."""
    shown = " ".join([Path(command[0]).name, *(word for word in command[1:] if not word.startswith("/"))])
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise KubeError(f"`{shown}` did not end within {timeout_s:.0f} s") from error
    if done.returncode:
        raise KubeError(f"`{shown}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
