"""Signs the tenant of a request for servers. The server verifies it in http/tenant.py."""

import base64
import hmac
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec
from multidict import CIMultiDict

from slipway_contracts.headers import PROOF, TENANT, WEIGHT

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
        self._sign_with: Callable[[str, bytes], None] = lambda id_, master: None
        self._own_key = os.urandom(MIN_KEY_BYTES)  # of salts, while the release's keys are not known
        self._version: tuple[int, int, int] | None = None  # of the file, as it was read
        self._looked_s = float("-inf")
        # By tenant, deployment and weight: the window, the proof, and the signature of the weight.
        self._kept: OrderedDict[tuple[str, str, str], tuple[int, str, str]] = OrderedDict()

    def join(self, sign_with: Callable[[str, bytes], None]) -> None:
        """`sign_with`: gets each key, for the fast lane, which signs too."""
        self._sign_with = sign_with
        self.refresh()

    def refresh(self) -> None:
        """Looks for another key, if it is time to; a request does so too."""
        if self._path:
            self._look(self._clock())

    def sign(self, headers: CIMultiDict[str], deployment: str) -> None:
        """Set the proof of the tenant in these headers, as they go to a server of `deployment` (namespace/name).

        Called just before a request is sent: it may have waited, or its stream may continue elsewhere after an hour.
        """
        tenant = headers.get(TENANT)
        weight = headers.get(WEIGHT, "").partition(".")[0]
        proof, signature = self._proof(tenant, deployment, weight) if tenant and self._path else ("", "")
        if proof:
            headers[PROOF] = proof
        else:
            headers.popall(PROOF, None)
        if weight:
            headers[WEIGHT] = f"{weight}.{signature}" if signature else weight

    def cache_salt(self, tenant: str, deployment: str, client_salt: bytes = b"") -> str:
        """The `cache_salt` of a tenant at engines of `deployment` (namespace/name), in 64 hexadecimal digits.

        It is the same at each gateway of the release while the first of its keys is the same, and cannot be guessed.
        `client_salt`: digest of the salt that the client sends, which divides the tenant's own cache.
        """
        if self._path:
            self._look(self._clock())
        master = self._key[1] if self._key else self._own_key
        about = f"cache salt v1\0{deployment}\0{tenant}\0".encode("utf-8", "surrogatepass") + client_salt
        return hmac.digest(_key_of(master, deployment), about, "sha256").hex()

    def _proof(self, tenant: str, deployment: str, weight: str) -> tuple[str, str]:
        now_s = self._clock()
        self._look(now_s)
        if self._key is None:
            return "", ""
        about, window = (tenant, deployment, weight), int(now_s // WINDOW_S)
        kept = self._kept.get(about)
        if kept and kept[0] == window:
            return kept[1], kept[2]
        made = proof(*self._key, tenant, deployment, window)
        signature = sign_weight(self._key[1], tenant, deployment, window, weight) if weight else ""
        self._kept[about] = (window, made, signature)
        self._kept.move_to_end(about)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return made, signature

    def _look(self, now_s: float) -> None:
        if 0 <= now_s - self._looked_s < LOOK_AGAIN_S:
            return
        self._looked_s = now_s
        version = _version(self._path)
        if version is None or version == self._version:
            return  # a deleted Secret is created again with other keys; until then the last keys stay in use
        self._version = version
        try:
            self._key = _read(self._path)
        except (OSError, ValueError) as error:
            log.error("the release's keys cannot be read, so tenants are proved as before or not at all: %s", error)
            return
        self._kept.clear()
        self._sign_with(*self._key)


def proof(key_id: str, master: bytes, tenant: str, deployment: str, window: int) -> str:
    """The signature that servers verify, with a key of the deployment's namespace."""
    signed = hmac.digest(_key_of(master, deployment), f"v1\0{tenant}\0{deployment}\0{window}".encode(), "sha256").hex()
    return f"v1.{key_id}.{window}.{signed}"


def sign_weight(master: bytes, tenant: str, deployment: str, window: int, weight: str) -> str:
    """The signature of a weight, by the same key."""
    about = f"weight v1\0{tenant}\0{deployment}\0{window}\0{weight}".encode()
    return hmac.digest(_key_of(master, deployment), about, "sha256").hex()


def _key_of(master: bytes, deployment: str) -> bytes:
    namespace = deployment.partition("/")[0]
    return hmac.digest(master, b"slipway tenant key\0" + namespace.encode(), "sha256")


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
