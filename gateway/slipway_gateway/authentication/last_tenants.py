"""Keeps the last tenants across a restart: in a file beside the last route table, used while the API server is away."""

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from ..identity.tenants import KnownTenant
from ..routing.last_table import GRACE_S
from .known_tenants import KnownTenants

log = logging.getLogger(__name__)
FILE = "tenants.json"
_VERSION = 1
_WRITE_EVERY_S = 1.0  # the shortest interval between writes
_CHECK_S = 60.0  # how often an unchanged table is written with its new age, and the age of a restored one is checked


class StoredTenants(msgspec.Struct):
    """Content of the file: it has hashes of API keys and no pepper.

    `saved_s`: Unix time of the last contact with the cluster.
    """

    saved_s: float
    tenants: list[KnownTenant]
    version: int = _VERSION


class LastTenants:
    """Keeps the known tenants in a file in `folder`; "": keeps nothing.

    `max_age_s`: tenants whose last contact with the cluster is longer ago are neither restored nor used any longer.
    """

    def __init__(self, folder: str, max_age_s: float, known: KnownTenants) -> None:
        self._path = Path(folder) / FILE if folder else None
        self._max_age_s = max_age_s
        self._known = known
        self._restored_of_s: float | None = None
        self._written_s = 0.0

    async def run(self, grace_s: float = GRACE_S) -> None:
        """Restores the file's tenants if none came from the cluster within `grace_s`; writes those that come later.

        Runs until it is cancelled. Restored tenants are dropped at `max_age_s`.
        """
        if self._path is None:
            return
        stored = self._read(self._path)
        await self._wait(grace_s)
        if self._known.current is None and stored is not None:
            log.warning("the API server does not answer: the last tenants are used")
            self._restored_of_s = stored.saved_s
            self._known.publish(stored.tenants)
        while True:
            await self._wait(_CHECK_S if self._restored_of_s is None else min(_CHECK_S, self._left_s()))
            self._known.changed.clear()
            await self._keep(self._path)
            await asyncio.sleep(_WRITE_EVERY_S)

    async def _keep(self, path: Path) -> None:
        if self._known.as_of_s > self._written_s:
            self._restored_of_s = None
            await asyncio.to_thread(self._write, path)
        elif self._restored_of_s is not None and self._left_s() <= 0:
            log.error("the restored tenants are too old: they are used no longer")
            self._restored_of_s = None
            self._known.forget()

    def _left_s(self) -> float:
        return self._max_age_s - (time.time() - (self._restored_of_s or 0.0))

    async def _wait(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._known.changed.wait()

    def _read(self, path: Path) -> StoredTenants | None:
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=StoredTenants)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            log.error("the last tenants are not used: %s", error, extra={"path": str(path)})
            return None
        usable = stored.version == _VERSION and time.time() - stored.saved_s <= self._max_age_s
        return stored if usable else None

    def _write(self, path: Path) -> None:
        """Replaces the file as a whole, so that a reader never sees a part. A failure is logged and raises nothing."""
        table, as_of_s = self._known.current, self._known.as_of_s
        if table is None:
            return
        made = path.with_suffix(".new")
        try:
            with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                # A copy of a policy is without the prices that requests have looked up.
                tenants = [replace(one, policy=replace(one.policy)) for one in table.tenants.values()]
                file.write(msgspec.json.encode(StoredTenants(as_of_s, tenants)))
                file.flush()
                os.fsync(file.fileno())
            os.replace(made, path)
            self._written_s = as_of_s
        except OSError as error:
            log.error("the tenants are not kept for a restart: %s", error, extra={"path": str(path)})
