"""Other programs as processes: their logs in files, their CPU time and memory from /proc."""

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from devcluster.processes import dies_with_parent
from testkit.world import proc

END_S = 25.0


class Died(Exception):
    """A program ended that was to run on."""


class Program:
    """One process; it dies with ours."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self._command, self._log = name, command, log
        self.admin_url = ""  # of its admin port, where it has one
        self._environment = {**os.environ, **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=dies_with_parent(),
            )  # fmt: skip

    async def stop(self) -> None:
        """End it, gently first."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), END_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def check(self) -> None:
        """Raises Died, with its last lines."""
        if self._process is None or self._process.returncode is not None:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-10:])
            raise Died(f"{self.name} ended; its last lines:\n{tail}")

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    def cpu_s(self) -> float:
        """User and system time so far."""
        self.check()
        return proc.cpu_s(self.pid)

    def rss_mb(self) -> float:
        """Resident now."""
        self.check()
        return proc.rss_bytes(self.pid) / 1e6

    def peak_mb(self) -> float:
        """The most that was ever resident."""
        self.check()
        return proc.peak_bytes(self.pid) / 1e6
