"""The pepper of the release, the secret with which API keys are hashed: read from a file, which may change."""

import base64
import logging
from collections.abc import Callable
from pathlib import Path

from ..identity.api_keys import MIN_PEPPER_BYTES

LOOK_AGAIN_S = 2.0
MAX_FILE_BYTES = 4096

log = logging.getLogger(__name__)


class PepperFile:
    """Reads the pepper from a file; `path` "": there is none. If the file cannot be read, the last pepper stays."""

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self._path, self._clock = path, clock
        self._pepper = b""
        self._looked_s = float("-inf")
        self._trouble = ""

    def read(self) -> bytes:
        """The pepper; empty while there is none."""
        now_s = self._clock()
        if self._path and not 0 <= now_s - self._looked_s < LOOK_AGAIN_S:
            self._looked_s = now_s
            self._look()
        return self._pepper

    def _look(self) -> None:
        try:
            with Path(self._path).open("rb") as file:
                pepper = base64.urlsafe_b64decode(file.read(MAX_FILE_BYTES).strip())
            if len(pepper) < MIN_PEPPER_BYTES:
                raise ValueError(f"it is shorter than {MIN_PEPPER_BYTES} bytes")
        except (OSError, ValueError) as error:
            if str(error) != self._trouble:  # logged once, not every two seconds
                self._report(error)
            self._trouble = str(error)
            return
        self._pepper, self._trouble = pepper, ""

    def _report(self, error: Exception) -> None:
        if isinstance(error, FileNotFoundError) and not self._pepper:  # a new release: the operator makes its Secret
            log.info("the pepper of API keys is not there yet: %s", self._path)
            return
        log.error("the pepper of API keys cannot be read from %s, the last one stays: %s", self._path, error)
