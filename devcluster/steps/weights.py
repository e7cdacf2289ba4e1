"""How long each step takes, in seconds: measured on two cores with an empty cache; what the estimates start from.

Only the proportions matter after the first minute: a slower machine is slower in all of them.
"""

from __future__ import annotations

SECONDS = {
    "install packages": 30,
    "base file system": 45,
    "import the base": 4,
    "compile kube": 440,
    "compile containerd": 50,
    "compile helm": 30,
    "compile metrics-server": 8,
    "compile kwok": 120,
    "compile prometheus": 100,
    "compile simulator": 220,
    "compile gcs": 180,
    "compile cert-manager": 135,
    "compile lws": 100,
    "compile kube-oldest": 180,
    "kind's own files": 1,
    "remove build caches": 25,
    "component images": 8,
    "node image": 40,
    "build the operator image": 40,
    "build the server image": 75,
    "build the server-predict image": 3,
    "install torch": 45,
    "start the node": 25,
    "wait for the node and its DNS": 10,
    "load the images": 25,
}
# What a Go module compiles when nothing is there yet, the standard library included.
PACKAGES = {"kube": 3500, "containerd": 750}
_SHORT_S = 2.0


def seconds_of(title: str) -> float:
    """Two seconds for what is not listed."""
    return SECONDS.get(title, _SHORT_S)
