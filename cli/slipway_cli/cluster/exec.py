"""Runs a program in a container of a pod by `kubectl exec`, which implements the streaming protocol."""

import subprocess
from collections.abc import Sequence

from slipway_cli.errors import CommandError

TIMEOUT_S = 60.0


def exec_in_pod(where: Sequence[str], pod: str, container: str, command: Sequence[str]) -> str:
    """The standard output of the program. `where`: kubectl's flags for cluster and namespace.

    Raises:
        CommandError: when kubectl is missing or not allowed, the program fails, or it does not end in `TIMEOUT_S`.
    """
    kubectl = ["kubectl", "exec", *where, pod, "-c", container, "--", *command]
    try:
        done = subprocess.run(kubectl, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except FileNotFoundError as error:
        raise CommandError("kubectl is not on PATH, and this command needs it") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"`kubectl exec` in pod {pod} did not end within {TIMEOUT_S:.0f} s") from error
    if done.returncode:
        why = done.stderr.strip().removeprefix("error: ") or f"exit code {done.returncode}"
        raise CommandError(f"`{' '.join(command[:2])}` in pod {pod} failed: {why}")
    return done.stdout
