"""Signs the tenant of a request for servers. The server verifies it in http/tenant.py."""

import base64
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec
from multidict import CIMultiDict

from ..wire.headers import PROOF, TENANT

WINDOW_S = 60
LOOK_AGAIN_S = 2.0  # at the file of the keys
MAX_FILE_BYTES = 65_536
MAX_KEPT = 8192  # proofs: about 4 MB
MIN_KEY_BYTES = 32

log = logging.getLogger(__name__)


class _SigningKey(msgspec.Struct):
    id: str
    key: str  # base64url


class _SigningKeys(msgspec.Struct):
    keys: list[_SigningKey]


class TenantSigner:
    """Signs with the first of the release's keys; without a key nothing is proved, and servers take no tenant."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        """`path`: JSON, read again when it changes; "": there are no keys."""
        self._path, self._clock = path, clock
        self._key: tuple[str, bytes] | None = None
        self._version: tuple[int, int, int] | None = None  # of the file, as it was read
        self._looked_s = float("-inf")
        self._kept: OrderedDict[tuple[str, str], tuple[int, str]] = OrderedDict()

    def sign(self, headers: CIMultiDict[str], deployment: str) -> None:
        """Set the proof of the tenant in these headers, as they go to a server of `deployment` (namespace/name).

        Just before they go: a request may have waited, or go on elsewhere after an hour.
        """
        tenant = headers.get(TENANT)
        proof = self._proof(tenant, deployment) if tenant and self._path else ""
        if proof:
            headers[PROOF] = proof
        else:
            headers.popall(PROOF, None)

    def _proof(self, tenant: str, deployment: str) -> str:
        now_s = self._clock()
        self._look(now_s)
        if self._key is None:
            return ""
        about, window = (tenant, deployment), int(now_s // WINDOW_S)
        kept = self._kept.get(about)
        if kept and kept[0] == window:
            return kept[1]
        made = proof(*self._key, tenant, deployment, window)
        self._kept[about] = (window, made)
        self._kept.move_to_end(about)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return made

    def _look(self, now_s: float) -> None:
        if 0 <= now_s - self._looked_s < LOOK_AGAIN_S:
            return
        self._looked_s = now_s
        version = _version(self._path)
        if version is None or version == self._version:
            return  # a Secret that was deleted is made again with other keys; until then the last ones are as good
        self._version = version
        try:
            self._key = _read(self._path)
        except (OSError, ValueError) as error:
            log.error("the release's keys cannot be read, so tenants are proved as before or not at all: %s", error)
            return
        self._kept.clear()


def proof(key_id: str, master: bytes, tenant: str, deployment: str, window: int) -> str:
    """The signature that servers verify, with a key of the deployment's namespace."""
    namespace = deployment.partition("/")[0]
    key = hmac.digest(master, b"slipway tenant key\0" + namespace.encode(), "sha256")
    signed = hmac.digest(key, f"v1\0{tenant}\0{deployment}\0{window}".encode(), "sha256").hex()
    return f"v1.{key_id}.{window}.{signed}"


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: str) -> tuple[str, bytes]:
    """
    Raises:
        OSError: when the file cannot be read.
        ValueError: when it names no key.
    """
    with Path(path).open("rb") as file:
        text = file.read(MAX_FILE_BYTES + 1)
    keys = msgspec.json.decode(text[:MAX_FILE_BYTES], type=_SigningKeys).keys
    if not keys:
        raise ValueError(f"{path} has no key")
    key = base64.urlsafe_b64decode(keys[0].key)
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"the key {keys[0].id} in {path} is shorter than {MIN_KEY_BYTES} bytes")
    return keys[0].id, key
