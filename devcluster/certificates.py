"""Keys and certificates of a throw-away control plane, made with the openssl program (50 ms for all of them)."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from devcluster.processes import run

_DAYS = "3650"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority in a folder of its own."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Authority:
        folder.mkdir(parents=True, mode=0o700)
        run(["openssl", "req", "-x509", *_NEW_KEY, "-days", _DAYS, "-keyout", folder / "ca.key",
             "-out", folder / "ca.crt", "-subj", "/CN=devcluster"])  # fmt: skip
        return cls(folder)

    def issue(self, name: str, subject: str, names: str = "DNS:unused") -> None:
        """Writes NAME.key and NAME.crt, good for servers and clients alike."""
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
        run(["openssl", "req", *_NEW_KEY, "-keyout", self.path(f"{name}.key"), "-out", request, "-subj", subject])
        run(["openssl", "x509", "-req", "-in", request, "-CA", self.path("ca.crt"), "-CAkey", self.path("ca.key"),
             "-CAcreateserial", "-days", _DAYS, "-out", self.path(f"{name}.crt"), "-extfile", extensions])  # fmt: skip

    def service_account_key(self) -> None:
        """The pair that signs and checks the tokens of service accounts."""
        run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.path("sa.key")])
        run(["openssl", "ec", "-in", self.path("sa.key"), "-pubout", "-out", self.path("sa.pub")])

    def path(self, name: str) -> Path:
        return self.folder / name

    def encoded(self, name: str) -> str:
        """A file as a kubeconfig carries it."""
        return base64.b64encode(self.path(name).read_bytes()).decode()
