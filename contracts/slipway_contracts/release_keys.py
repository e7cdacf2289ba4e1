"""The release's keys, from the file that proves tenants to servers: the first one signs, each of them verifies."""

import base64
import hmac
import json
import logging
import time
from pathlib import Path

_LOOK_AGAIN_S = 2.0
_MAX_FILE_BYTES = 65_536
_MIN_KEY_BYTES = 32

log = logging.getLogger(__name__)


class ReleaseKeys:
    """Keys for one purpose, each derived from a key of the release: a signature is valid for its purpose alone."""

    def __init__(self, path: str, purpose: bytes) -> None:
        """`path`: JSON, read again when it changes; "": there are no keys."""
        self._path, self._purpose = path, purpose
        self._keys: dict[str, bytes] = {}
        self._version: tuple[int, int, int] | None = None
        self._looked_s = float("-inf")

    def current(self) -> dict[str, bytes]:
        """The keys by their id, the one that signs first; empty while there are none."""
        now_s = time.monotonic()
        if self._path and now_s - self._looked_s >= _LOOK_AGAIN_S:
            self._looked_s = now_s
            self._look()
        return self._keys

    def _look(self) -> None:
        try:
            found = Path(self._path).stat()
            version = (found.st_ino, found.st_mtime_ns, found.st_size)
            if version != self._version:
                self._keys = self._read()
                self._version = version
        except FileNotFoundError:
            return  # the operator creates the Secret of a new release, and creates a deleted one again
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error("the release's keys cannot be read, the last ones stay: %s", error)

    def _read(self) -> dict[str, bytes]:
        """
        Raises:
            OSError: when the file cannot be read.
            ValueError: when it has no key.
        """
        with Path(self._path).open("rb") as file:
            listed = json.loads(file.read(_MAX_FILE_BYTES))["keys"]
        masters = {str(one["id"]): base64.urlsafe_b64decode(one["key"]) for one in listed}
        if not masters or min(map(len, masters.values())) < _MIN_KEY_BYTES:
            raise ValueError(f"{self._path} has no key of {_MIN_KEY_BYTES} bytes")
        return {name: hmac.digest(master, self._purpose, "sha256") for name, master in masters.items()}
