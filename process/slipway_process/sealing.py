"""Encrypts what is stored: AES-256-GCM, bound to the row that it belongs to.

The keys are in a file, a mounted Secret: `{"keys": [{"id": "2026-11", "key": "<32 bytes in base64>"}]}`. The first one
seals, each of them opens, so that a key is rotated by a new one before the others. A sealed value begins with `MAGIC`
and the id of its key; any other value is plain, written before there was a key.
"""

import base64
import json
import logging
import os
import re
import time
from pathlib import Path
from threading import Lock

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"\0sl\1"  # no JSON begins so
_ID = re.compile(r"[A-Za-z0-9._-]{1,16}")
_ID_BYTES, _NONCE_BYTES, _TAG_BYTES, _KEY_BYTES = 16, 12, 16, 32
# What sealing adds to each value, whatever its key.
OVERHEAD_BYTES = len(MAGIC) + _ID_BYTES + _NONCE_BYTES + _TAG_BYTES
_MAX_FILE_BYTES = 65_536
_LOOK_AGAIN_S = 2.0

log = logging.getLogger(__name__)


class UnreadableSeal(Exception):
    """A value that cannot be opened."""


class SealingKeyLost(UnreadableSeal):
    """The key that sealed a value is not in the keyring."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"it was sealed by the key {key_id!r}, which is not in the keyring")
        self.key_id = key_id


class BrokenSeal(UnreadableSeal):
    """A value is not what was sealed for this row: it was changed, or moved from another row."""


class Keyring:
    """Keys of one file, read again when it changes. It may be used in several threads."""

    def __init__(self, path: str) -> None:
        """
        Args:
            path: of the file; "": nothing is sealed, and what was sealed cannot be opened.

        Raises:
            ValueError: the file cannot be read, or has no valid key.
        """
        self._path, self._lock = path, Lock()
        self._ciphers: dict[str, AESGCM] = {}
        self._version: tuple[int, int, int] | None = None
        self._looked_s = time.monotonic()
        if path:
            try:
                self._load()
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path} has no valid keys: {error}") from None

    @classmethod
    def none(cls) -> "Keyring":
        """A keyring without keys: all values are plain."""
        return cls("")

    @property
    def is_on(self) -> bool:
        """Whether values are sealed."""
        return bool(self._path)

    def seal(self, data: bytes, about: str) -> bytes:
        """The sealed value, or `data` itself without keys. `about`: the table and the id of its row."""
        if not self._path:
            return data
        key_id, cipher = next(iter(self._current().items()))
        head = MAGIC + key_id.encode().ljust(_ID_BYTES, b"\0")
        nonce = os.urandom(_NONCE_BYTES)
        return head + nonce + cipher.encrypt(nonce, data, head + about.encode())

    def open(self, data: bytes, about: str) -> bytes:
        """The plain value; one that was never sealed is returned as it is.

        Raises:
            UnreadableSeal: see its subclasses.
        """
        if not data.startswith(MAGIC):
            return data
        if len(data) < OVERHEAD_BYTES:
            raise BrokenSeal("it is too short")
        head, nonce, sealed = data[:20], data[20:32], data[32:]
        key_id = head[len(MAGIC) :].rstrip(b"\0").decode("ascii", "replace")
        cipher = self._current().get(key_id)
        if cipher is None:
            raise SealingKeyLost(key_id)
        try:
            return cipher.decrypt(nonce, sealed, head + about.encode())
        except InvalidTag:
            raise BrokenSeal("it is not what was sealed for this row") from None

    def _current(self) -> dict[str, AESGCM]:
        now_s = time.monotonic()
        with self._lock:
            if self._path and now_s - self._looked_s >= _LOOK_AGAIN_S:
                self._looked_s = now_s
                try:
                    self._load()
                except (OSError, ValueError, KeyError, TypeError) as error:
                    log.error("the sealing keys cannot be read, the last ones stay: %s", error)
            return self._ciphers

    def _load(self) -> None:
        seen = Path(self._path).stat()
        version = (seen.st_ino, seen.st_mtime_ns, seen.st_size)
        if version == self._version:
            return
        with Path(self._path).open("rb") as file:
            listed = json.loads(file.read(_MAX_FILE_BYTES))["keys"]
        ciphers: dict[str, AESGCM] = {}
        for entry in listed:
            key_id, key = str(entry["id"]), base64.b64decode(str(entry["key"]).replace("-", "+").replace("_", "/"))
            if not _ID.fullmatch(key_id) or key_id in ciphers:
                raise ValueError(f"the id of a key has 1 to 16 of A-Z a-z 0-9 . _ - and is there once: {key_id[:40]!r}")
            if len(key) != _KEY_BYTES:
                raise ValueError(f"the key {key_id!r} has {len(key)} bytes and not {_KEY_BYTES}")
            ciphers[key_id] = AESGCM(key)
        if not ciphers:
            raise ValueError("it has no key")
        self._ciphers, self._version = ciphers, version
