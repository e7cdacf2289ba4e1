"""Certificates as the operator issues them, in folders as the kubelet writes them."""

import os
import ssl
import time
from pathlib import Path

from slipway_operator.manifests.pods import certificate
from slipway_operator.model.cluster import authorities, certificates
from slipway_operator.model.cluster.authorities import Authority, Terms
from slipway_operator.model.cluster.certificates import Issued, Role
from slipway_process.network import mutual_tls

NAMESPACE = "team-a"
PODS = certificate.pods_of(NAMESPACE)
HOST = "127-0-0-1.team-a.pod.slipway.internal"  # of a pod of NAMESPACE at 127.0.0.1
GATEWAY_HOST = "127-0-0-1.gateway.slipway.internal"
TERMS = Terms()


def new_authority(now: float | None = None) -> Authority:
    entropy = os.urandom(authorities.SEED_BYTES + 4)
    return authorities.new_authority(entropy, time.time() if now is None else now)


def issue(role: Role, *known: Authority, turn: int = 0) -> Issued:
    """A certificate that is valid now; another one for each `turn`, in seconds: more of them than a test takes."""
    start = time.time() - 60 - turn
    return certificates.issue(known, role, authorities.Period(start, start + 3600), TERMS)


def install(folder: Path, issued: Issued) -> Path:
    """All three files change at once, as in the volume of a Secret."""
    new = folder.with_name(f"{folder.name}-{os.urandom(4).hex()}")
    new.mkdir(parents=True)
    for name, text in (("tls.crt", issued.certificate), ("tls.key", issued.private_key), ("ca.crt", issued.ca)):
        (new / name).write_text(text)
    link = new.with_name(f"{new.name}.link")
    link.symlink_to(new, target_is_directory=True)
    os.replace(link, folder)
    return folder


def client_of(issued: Issued) -> ssl.SSLContext:
    """A context of who has this certificate."""
    return mutual_tls.client_context(mutual_tls.PemIdentity(issued.certificate, issued.private_key, issued.ca))


def flags(folder: Path) -> tuple[str, ...]:
    """Of a server with this folder, as its pod has them."""
    files = (("--ssl-certfile", "tls.crt"), ("--ssl-keyfile", "tls.key"), ("--ssl-ca-certs", "ca.crt"))
    return tuple(part for flag, name in files for part in (flag, str(folder / name)))
