"""Passes: signatures by which gateway and jobs process name a tenant to each other, for a minute and one path.

Both have the release's keys. A client has none, so that it can make no pass, and the gateway drops headers of this
prefix that come without a valid one.
"""

import base64
import hmac
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

TENANT = "X-Slipway-Jobs-Tenant"
PASS = "X-Slipway-Jobs-Pass"
INVALID_PASS = "invalid_pass"  # code of the error
TO_JOBS, TO_GATEWAY = "jobs", "gateway"
LIFETIME_S = 60
_SKEW_S = 10  # of the clocks of two nodes
_LOOK_AGAIN_S = 2.0
_MAX_FILE_BYTES = 65_536
_MIN_KEY_BYTES = 32
_MAX_PASS = 256

log = logging.getLogger(__name__)


class PassKeys:
    """The release's keys, from the file that proves tenants to servers too; the first signs, each of them verifies."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        """`path`: JSON, read again when it changes; "": there are no keys."""
        self._path, self._clock = path, clock
        self._keys: dict[str, bytes] = {}
        self._version: tuple[int, int, int] | None = None
        self._looked_s = float("-inf")

    @property
    def known(self) -> bool:
        """Whether there is a key to sign with."""
        self._look()
        return bool(self._keys)

    def make(self, purpose: str, tenant: str, method: str, path: str) -> str:
        """
        Raises:
            LookupError: there is no key yet.
        """
        self._look()
        if not self._keys:
            raise LookupError("the release's keys are not there yet")
        key_id, key = next(iter(self._keys.items()))
        ends = int(self._clock()) + LIFETIME_S
        return f"v1.{key_id}.{ends}.{_sign(key, purpose, tenant, method, path, ends)}"

    def is_valid(self, given: str, purpose: str, tenant: str, method: str, path: str) -> bool:
        """Whether this pass was made for exactly this, and not long ago."""
        self._look()
        parts = given.split(".") if len(given) <= _MAX_PASS and given.isascii() else []
        if len(parts) != 4 or parts[0] != "v1" or not parts[2].isdecimal() or len(parts[2]) > 15:
            return False
        key, ends = self._keys.get(parts[1]), int(parts[2])
        if key is None or not -_SKEW_S <= ends - self._clock() <= LIFETIME_S + _SKEW_S:
            return False
        return hmac.compare_digest(_sign(key, purpose, tenant, method, path, ends), parts[3])

    def _look(self) -> None:
        now_s = time.monotonic()
        if not self._path or now_s - self._looked_s < _LOOK_AGAIN_S:
            return
        self._looked_s = now_s
        try:
            found = Path(self._path).stat()
            version = (found.st_ino, found.st_mtime_ns, found.st_size)
            if version != self._version:
                self._keys = _read(self._path)
                self._version = version
        except FileNotFoundError:
            return  # a new release: the operator makes the Secret; one that was deleted is made again
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error("the release's keys cannot be read, the last ones stay: %s", error)


def _sign(key: bytes, purpose: str, tenant: str, method: str, path: str, ends: int) -> str:
    about = "\0".join(("v1", purpose, tenant, method, path, str(ends)))
    return hmac.digest(key, about.encode("utf-8", "surrogatepass"), "sha256").hex()


def _read(path: str) -> dict[str, bytes]:
    """
    Raises:
        OSError: when the file cannot be read.
        ValueError: when it has no key.
    """
    with Path(path).open("rb") as file:
        listed = json.loads(file.read(_MAX_FILE_BYTES))["keys"]
    masters = {str(one["id"]): base64.urlsafe_b64decode(one["key"]) for one in listed}
    if not masters or min(map(len, masters.values())) < _MIN_KEY_BYTES:
        raise ValueError(f"{path} has no key of {_MIN_KEY_BYTES} bytes")
    # A key of its own: a pass says nothing about the proofs that servers verify.
    return {name: hmac.digest(master, b"slipway jobs key", "sha256") for name, master in masters.items()}
