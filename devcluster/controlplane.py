"""The second profile: etcd and kube-apiserver on loopback, without root, for tests that need an API but no nodes."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from devcluster import pins
from devcluster.certificates import Authority
from devcluster.errors import DevclusterError
from devcluster.places import Places, places
from devcluster.ports import reserve_port
from devcluster.processes import dies_with_parent, succeeds

_READY_WITHIN_S = 60.0
_STOP_WITHIN_S = 5.0
_TRIES = 3


def assets(where: Places) -> Path | None:
    """The folder with kube-apiserver, etcd and kubectl: $KUBEBUILDER_ASSETS, else the cache, else none."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    folder = Path(named) if named else where.binaries(pins.MODULES["kube"])
    missing = [name for name in pins.CONTROL_PLANE if not (folder / name).exists()]
    if missing and named:
        raise DevclusterError(f"KUBEBUILDER_ASSETS={named} has no {', '.join(missing)}.")
    return None if missing else folder


def api_server_binary(where: Places, folder: Path) -> Path:
    """That of the newest Kubernetes, or with SLIPWAY_KUBERNETES=oldest of the oldest that is supported."""
    if os.environ.get("SLIPWAY_KUBERNETES") != "oldest":
        return folder / "kube-apiserver"
    binary = where.binary(pins.OLDEST_API_SERVER)
    if not binary.exists():
        raise DevclusterError(
            f"SLIPWAY_KUBERNETES=oldest needs `python -m devcluster build {pins.OLDEST_API_SERVER}` first."
        )
    return binary


@contextmanager
def api_server(where: Places | None = None) -> Iterator[Path]:
    """A kubeconfig of a real API server: a control plane of one's own, else the running kind cluster."""
    where = where or places()
    if assets(where):
        with ControlPlane(where) as control_plane:
            yield control_plane.kubeconfig
    elif where.kubeconfig.exists() and _answers(where.kubeconfig):
        yield where.kubeconfig
    else:
        raise DevclusterError(
            "No API server for tests: run `python -m devcluster build control-plane` (compiles etcd and kube-apiserver "
            "once, some minutes) or `python -m devcluster up` first, or set KUBEBUILDER_ASSETS."
        )


def _answers(kubeconfig: Path) -> bool:
    kubectl = shutil.which("kubectl") or "kubectl"
    return succeeds([kubectl, "--kubeconfig", str(kubeconfig), "get", "--raw", "/readyz"], timeout=10)


class ControlPlane:
    """Starts on entering, is gone on leaving, and dies with its parent process; several run side by side.

    RBAC is on. There are no controllers: nothing creates service accounts in new namespaces, owner references are not
    collected and a deleted namespace stays Terminating; so give each test a namespace with a name of its own.
    """

    def __init__(self, where: Places | None = None) -> None:
        where = where or places()
        folder = assets(where)
        if folder is None:
            raise DevclusterError(
                "kube-apiserver and etcd are not built yet: run `python -m devcluster build control-plane`."
            )
        self._assets = folder
        self._api_server = api_server_binary(where, folder)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._folder = Path()
        self._authority = Authority(self._folder)
        self._front_proxy = Authority(self._folder)
        self.url = ""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, with everything embedded."""
        return self._folder / "admin.kubeconfig"

    @property
    def kubectl(self) -> Path:
        return self._assets / "kubectl"

    def __enter__(self) -> ControlPlane:
        self._folder = Path(tempfile.mkdtemp(prefix="slipway-control-plane-"))
        try:
            self._make_certificates()
            self._start_with_retries()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends both processes and removes the folder."""
        self._stop_processes()
        shutil.rmtree(self._folder, ignore_errors=True)

    def user_kubeconfig(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig of an unprivileged user: for tests of RBAC rules."""
        name = f"user-{len(list(self._folder.glob('*.kubeconfig')))}"
        self._authority.issue(name, user, groups)
        return self._write_kubeconfig(name)

    def logs(self) -> str:
        """What both processes wrote: for the error message of a failed start."""
        return "".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("*.log")))

    def _make_certificates(self) -> None:
        self._authority = Authority.create(self._folder / "pki")
        hosts = ("localhost", "kubernetes.default.svc", "127.0.0.1")
        self._authority.issue("apiserver", "kube-apiserver", hosts=hosts)
        self._authority.issue("admin", "admin", ["system:masters"])
        # Of an authority of its own: else any certificate of ours could impersonate every user at aggregated APIs.
        self._front_proxy = Authority.create(self._folder / "front-proxy")
        self._front_proxy.issue("front-proxy", "front-proxy-client")
        self._authority.service_account_key()

    def _start_with_retries(self) -> None:
        for attempt in range(1, _TRIES + 1):
            etcd_port, peer_port, api_port = (reserve_port() for _ in range(3))
            self.url = f"https://127.0.0.1:{api_port}"
            self._write_kubeconfig("admin")
            self._start("etcd", _etcd_command(self._assets, self._folder, etcd_port, peer_port))
            self._start(
                "kube-apiserver",
                _apiserver_command(self._api_server, self._authority, self._front_proxy, etcd_port, api_port),
            )
            if self._becomes_ready():
                return
            # Another program may have taken a port.
            self._stop_processes()
            if attempt == _TRIES:
                tail = "\n".join(f"    {line}" for line in self.logs().splitlines()[-10:])
                raise DevclusterError(f"The control plane did not start in {_TRIES} tries; its last lines:\n{tail}")

    def _start(self, name: str, command: Sequence[str]) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=dies_with_parent(),
            )  # fmt: skip
        self._processes.append(process)

    def _becomes_ready(self) -> bool:
        context = ssl.create_default_context(cafile=str(self._authority.path("ca.crt")))
        context.load_cert_chain(self._authority.path("admin.crt"), self._authority.path("admin.key"))
        deadline = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < deadline:
            if any(process.poll() is not None for process in self._processes):
                return False
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", context=context, timeout=5) as answer:
                    return bool(answer.status == 200)
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        return False

    def _stop_processes(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                # The API server drains for long; no client waits for these answers.
                process.wait(0.3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_WITHIN_S)
        self._processes.clear()

    def _write_kubeconfig(self, user: str) -> Path:
        path = self._folder / f"{user}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(kubeconfig_of(self.url, self._authority, user)))
        return path


def kubeconfig_of(url: str, authority: Authority, user: str) -> dict[str, object]:
    """A kubeconfig with its certificates embedded (JSON is YAML)."""
    cluster = {"server": url, "certificate-authority-data": authority.encoded("ca.crt")}
    credentials = {
        "client-certificate-data": authority.encoded(f"{user}.crt"),
        "client-key-data": authority.encoded(f"{user}.key"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "control-plane", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "control-plane", "context": {"cluster": "control-plane", "user": user}}],
        "current-context": "control-plane",
    }


def _etcd_command(folder: Path, data: Path, port: int, peer_port: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        str(folder / "etcd"), f"--data-dir={data / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn",
        f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
    ]  # fmt: skip


def _apiserver_command(
    binary: Path, authority: Authority, front_proxy: Authority, etcd_port: int, port: int
) -> list[str]:
    return [
        str(binary), f"--etcd-servers=http://127.0.0.1:{etcd_port}", f"--secure-port={port}",
        "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--service-cluster-ip-range=10.98.0.0/16",
        f"--tls-cert-file={authority.path('apiserver.crt')}",
        f"--tls-private-key-file={authority.path('apiserver.key')}",
        f"--client-ca-file={authority.path('ca.crt')}",
        f"--service-account-key-file={authority.path('sa.pub')}",
        f"--service-account-signing-key-file={authority.path('sa.key')}",
        "--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC",
        f"--requestheader-client-ca-file={front_proxy.path('ca.crt')}",
        "--requestheader-allowed-names=front-proxy-client", "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={front_proxy.path('front-proxy.crt')}",
        f"--proxy-client-key-file={front_proxy.path('front-proxy.key')}",
        "--allow-privileged", "--enable-priority-and-fairness=false", "--endpoint-reconciler-type=none",
        # No controller creates service accounts here, and without them no pod would be admitted.
        "--disable-admission-plugins=ServiceAccount",
    ]  # fmt: skip
