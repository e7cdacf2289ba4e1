"""Requests to the API server as another user, through one `kubectl proxy` that runs all the time.

A kubectl process for each write uses more CPU than the write. A stranger runs it on another machine, and here it would
run on the node that is measured.
"""

import json
import subprocess
import urllib.error
import urllib.request
from types import TracebackType
from typing import Any

from testkit.cluster.kube import Kube
from testkit.cluster.tools import tool


class Impersonation:
    """`user`: as kubectl's --as takes it."""

    def __init__(self, kube: Kube, user: str) -> None:
        self._command = [tool("kubectl"), "--kubeconfig", str(kube.kubeconfig), f"--as={user}", "proxy", "--port=0"]
        self._url = ""

    def __enter__(self) -> "Impersonation":
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        # "Starting to serve on 127.0.0.1:PORT"
        self._url = f"http://{self._process.stdout.readline().split()[-1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate(timeout=10)

    def patch(self, path: str, change: dict[str, Any]) -> str:
        """A JSON merge patch; returns why the API server refused it, empty when it did not."""
        request = urllib.request.Request(
            f"{self._url}/{path}",
            json.dumps(change).encode(),
            {"Content-Type": "application/merge-patch+json"},
            method="PATCH",
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                response.read()
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read()[:200].decode(errors='replace')}"
        return ""
