"""Passes: signatures by which gateway and jobs process name a tenant to each other, for a minute and one path.

Both have the release's keys. A client has none, so that it can make no pass, and the gateway drops headers of this
prefix that come without a valid one.
"""

import hmac
import time
from collections.abc import Callable

from .release_keys import ReleaseKeys

INVALID_PASS = "invalid_pass"  # code of the error
TO_JOBS, TO_GATEWAY = "jobs", "gateway"
LIFETIME_S = 60
_SKEW_S = 10  # of the clocks of two nodes
_MAX_PASS = 256


class PassKeys:
    """Makes and checks passes, with the release's keys: the first one signs, each of them verifies."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        """`path`: JSON, read again when it changes; "": there are no keys."""
        # Keys of its own: a pass says nothing about the proofs that servers verify.
        self._keys, self._clock = ReleaseKeys(path, b"slipway jobs key"), clock

    @property
    def known(self) -> bool:
        """Whether there is a key to sign with."""
        return bool(self._keys.current())

    def make(self, purpose: str, tenant: str, method: str, path: str) -> str:
        """A pass for one request from now on, valid for `LIFETIME_S`. `purpose`: TO_JOBS or TO_GATEWAY.

        Raises:
            LookupError: there is no key yet.
        """
        if not (known := self._keys.current()):
            raise LookupError("the release's keys are not there yet")
        key_id, key = next(iter(known.items()))
        ends = int(self._clock()) + LIFETIME_S
        return f"v1.{key_id}.{ends}.{_sign(key, purpose, tenant, method, path, ends)}"

    def is_valid(self, given: str, purpose: str, tenant: str, method: str, path: str) -> bool:
        """Whether a pass was made for exactly this purpose, tenant, method and path, and is not expired."""
        parts = given.split(".") if len(given) <= _MAX_PASS and given.isascii() else []
        if len(parts) != 4 or parts[0] != "v1" or not parts[2].isdecimal() or len(parts[2]) > 15:
            return False
        key, ends = self._keys.current().get(parts[1]), int(parts[2])
        if key is None or not -_SKEW_S <= ends - self._clock() <= LIFETIME_S + _SKEW_S:
            return False
        return hmac.compare_digest(_sign(key, purpose, tenant, method, path, ends), parts[3])


def _sign(key: bytes, purpose: str, tenant: str, method: str, path: str, ends: int) -> str:
    about = "\0".join(("v1", purpose, tenant, method, path, str(ends)))
    return hmac.digest(key, about.encode("utf-8", "surrogatepass"), "sha256").hex()
