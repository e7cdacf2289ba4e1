"""Folders of adapters that left an engine whose requests may read them once more."""

import time

KEPT_S = 3600.0  # the time that gateways give a whole request


class KeptFolders:
    """Folders, by name, until their requests have surely ended. `keep_s`: 0 where an engine ends them before."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._until_s: dict[str, float] = {}

    def add(self, folder: str) -> None:
        """An adapter of this folder has been unloaded."""
        self._until_s[folder] = time.monotonic() + self._keep_s

    def engine_ended(self) -> None:
        """No request is left."""
        self._until_s.clear()

    def __contains__(self, folder: str) -> bool:
        if time.monotonic() < self._until_s.get(folder, 0.0):
            return True
        self._until_s.pop(folder, None)
        return False
