"""What keeps the control plane of a developer's one node quiet: it shares its cores with what is developed (pure).

kubeadm's defaults are for machines of their own, of which some are to fail: three of each part, each looked at every
second, every word on disk before it is answered. Here is one of each, on a machine that also runs models, and who loses
it runs `up`. No part, API or admission is missing for it, and no controller decides otherwise.
"""

from __future__ import annotations

from typing import Any

import yaml

PATCHES = "/kind/patches"  # in the node: the folder that kubeadm takes its patches from
_PROBE_PERIOD_S = 5
_PROBED_EVERY_SECOND = ("kube-apiserver", "etcd", "kube-scheduler")
# Memory for processor time: the heap may grow to three times of what is in use before it is swept, in place of twice.
_SWEPT_LESS_OFTEN = [{"name": "GOGC", "value": "200"}]
_SOLE = {"leader-elect": "false"}  # there is no second one to win against, and each writes its lease every two seconds
_ETCD = {
    "unsafe-no-fsync": "true",  # the cluster does not outlive its machine
    # One member has no peer to send a heartbeat to, but wakes up for each, ten times a second by default.
    "heartbeat-interval": "1000",
    "election-timeout": "10000",
    # To each watch of each kind of object; clients that need it now request it. kubeadm sets 5 s.
    "watch-progress-notify-interval": "1m",
}


def cluster_configuration() -> dict[str, Any]:
    """kubeadm's ClusterConfiguration, as far as it differs; lists replace kind's own."""
    return {
        "kind": "ClusterConfiguration",
        # Keys in a hundredth of the time, and so every handshake: of ours, of probes, of each kubectl.
        "encryptionAlgorithm": "ECDSA-P256",
        "apiServer": {"extraEnvs": _SWEPT_LESS_OFTEN},
        "controllerManager": {
            "extraArgs": _arguments({"enable-hostpath-provisioner": "true"} | _SOLE),  # the first is kind's
            "extraEnvs": _SWEPT_LESS_OFTEN,
        },
        "scheduler": {"extraArgs": _arguments(_SOLE)},
        "etcd": {"local": {"extraArgs": _arguments(_ETCD)}},
    }


def patches() -> dict[str, str]:
    """File name → patch, of what kubeadm has no setting for."""
    return {
        f"{name}.yaml": yaml.safe_dump(patch) for name, patch in (_probes() | {"corednsdeployment": _dns()}).items()
    }


def _probes() -> dict[str, dict[str, Any]]:
    """Each look is a TLS handshake and, at the API server, a read from etcd."""
    return {name: {"spec": {"containers": [_probed(name)]}} for name in _PROBED_EVERY_SECOND}


def _probed(name: str) -> dict[str, Any]:
    return {"name": name, "readinessProbe": {"periodSeconds": _PROBE_PERIOD_S}}


def _dns() -> dict[str, Any]:
    """One node has one, found ready when it is: `up` waits for it."""
    container = {"name": "coredns", "readinessProbe": {"initialDelaySeconds": 0, "periodSeconds": 2}}
    return {"spec": {"replicas": 1, "template": {"spec": {"containers": [container]}}}}


def _arguments(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]
