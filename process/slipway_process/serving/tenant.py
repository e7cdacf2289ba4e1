"""The tenant of a request, which a gateway signs. See docs/contracts.md; the gateway's side is proof.py."""

import base64
import hmac
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from slipway_contracts.headers import PROOF, TENANT, WEIGHT
from slipway_process.serving.errors import invalid

WINDOW_S = 60
SKEW_WINDOWS = 2  # by which clocks, and the time that a request travels, may differ
RELOAD_S = 2.0  # seconds between two looks at the file of the keys
MAX_FILE_BYTES = 65_536
MAX_PROVED = 4096  # valid proofs that are remembered
MAX_WEIGHTS = 4096  # tenants of which a weight other than 1 is known

_TENANT = re.compile(r"[0-9a-f]{32}")
_WEIGHT = re.compile(r"([1-9][0-9]{0,3})(?:\.([0-9a-f]{64}))?")
_PROOF = re.compile(r"v1\.([A-Za-z0-9_-]{1,32})\.([0-9]{1,12})\.([0-9a-f]{64})")

log = logging.getLogger("slipway.http")


class _TenantKey(msgspec.Struct):
    id: str
    key: str  # base64url


class _TenantKeys(msgspec.Struct):
    keys: list[_TenantKey]


class Tenants:
    """Accepts a tenant with a valid proof. The engine is fair between tenants, and each has its own prefix cache.

    A header without a valid proof is ignored and counted: no request may fail while keys rotate.
    """

    def __init__(
        self,
        path: str = "",
        deployment: str = "",
        *,
        trust: bool = False,
        unproved: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`path`: JSON file of the namespace's keys, read again on change. `deployment`: namespace/name of this server.

        `trust`: take the header as it is; for a server behind a proxy of one's own.
        """
        self._path, self._deployment, self._trust = path, deployment, trust
        self._unproved, self._clock = unproved, clock
        self._keys: dict[str, bytes] = {}
        self._version: tuple[int, int, int] | None = None  # of the file, as it was read
        self._checked_s = float("-inf")
        self._proved: OrderedDict[tuple[str, str], int] = OrderedDict()  # tenant and proof; the window
        self._weights: OrderedDict[str, float] = OrderedDict()

    def of(self, headers: Mapping[str, str]) -> str:
        """The tenant; "" for requests without one. Raises HttpError for a malformed header."""
        given = headers.get(TENANT, "")
        if not given:
            return ""
        if not _TENANT.fullmatch(given):
            raise invalid(f"{TENANT} must be 32 hexadecimal digits; leave it to the gateway.")
        if self._trust or self._proves(given, headers.get(PROOF, "")):
            self._remember_weight(given, headers)
            return given
        self._unproved()
        return ""

    def weight_of(self, tenant: str) -> float:
        """The weight in the tenant's last request; 1 where that had none."""
        return self._weights.get(tenant, 1.0)

    def _remember_weight(self, tenant: str, headers: Mapping[str, str]) -> None:
        """Remember the weight of a tenant with a valid proof; a weight without a valid signature counts as none."""
        parts = _WEIGHT.fullmatch(headers.get(WEIGHT, ""))
        holds = parts is not None and (self._trust or self._signed(tenant, parts[1], parts[2] or "", headers))
        self._weights.pop(tenant, None)
        if parts is None or not holds or parts[1] == "1":
            return
        self._weights[tenant] = float(parts[1])
        if len(self._weights) > MAX_WEIGHTS:
            self._weights.popitem(last=False)

    def _signed(self, tenant: str, weight: str, signature: str, headers: Mapping[str, str]) -> bool:
        """Whether a weight is signed with the key and for the time window of the tenant's proof."""
        proof = _PROOF.fullmatch(headers.get(PROOF, ""))
        key = self._keys.get(proof[1]) if proof else None
        if proof is None or key is None:
            return False
        return hmac.compare_digest(sign_weight(key, tenant, self._deployment, proof[2], weight), signature)

    def _proves(self, tenant: str, proof: str) -> bool:
        now_s = self._clock()
        self._reload(now_s)
        known = self._proved.get((tenant, proof))
        window = self._check(tenant, proof) if known is None else known
        return window is not None and abs(int(now_s // WINDOW_S) - window) <= SKEW_WINDOWS

    def _check(self, tenant: str, proof: str) -> int | None:
        """The time window of a proof with a valid signature; None for any other proof."""
        parts = _PROOF.fullmatch(proof)
        key = self._keys.get(parts[1]) if parts else None
        if not parts or key is None:
            return None
        if not hmac.compare_digest(sign(key, tenant, self._deployment, parts[2]), parts[3]):
            return None
        self._proved[tenant, proof] = int(parts[2])
        if len(self._proved) > MAX_PROVED:
            self._proved.popitem(last=False)
        return int(parts[2])

    def _reload(self, now_s: float) -> None:
        """Reads the keys again when the file has changed. A missing file means no keys: its removal revokes them."""
        if not self._path or 0 <= now_s - self._checked_s < RELOAD_S:
            return
        self._checked_s = now_s
        version = _version(self._path)
        if version == self._version:
            return
        self._version, self._keys = version, {}
        self._proved.clear()
        if version is None:
            return
        try:
            self._keys = _read(self._path)
        except (OSError, ValueError) as error:
            log.error("the tenants' keys cannot be read, so no tenant is honoured: %s", error)


def sign(key: bytes, tenant: str, deployment: str, window: str) -> str:
    """Hexadecimal HMAC-SHA-256 of the fields of a proof."""
    return hmac.digest(key, f"v1\0{tenant}\0{deployment}\0{window}".encode(), "sha256").hex()


def sign_weight(key: bytes, tenant: str, deployment: str, window: str, weight: str) -> str:
    """Hexadecimal HMAC-SHA-256 of a weight with its tenant, deployment and time window."""
    return hmac.digest(key, f"weight v1\0{tenant}\0{deployment}\0{window}\0{weight}".encode(), "sha256").hex()


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: str) -> dict[str, bytes]:
    """The keys of the file, by their ids.

    Raises:
        OSError: when the file cannot be read.
        ValueError: when it is no list of keys.
    """
    with Path(path).open("rb") as file:
        text = file.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise ValueError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return {entry.id: base64.urlsafe_b64decode(entry.key) for entry in msgspec.json.decode(text, type=_TenantKeys).keys}
