"""Keeps the folder of a pool equal to its file: what is missing is downloaded, what has left is removed."""

import asyncio
import logging
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from slipway_process.backoff import Backoff
from slipway_process.model_folder.catalog import FETCH_ERROR, MAX_ERROR_BYTES, CatalogError, PoolEntry, read_catalog
from slipway_process.model_folder.checkpoint import MARKER

from .. import fetch_process

log = logging.getLogger("slipway.pool_fetcher")

POLL_S = 1.0
PARALLEL = 2  # downloads at a time
BACKOFF = Backoff(4.0, 300.0)  # between two attempts for one entry
REMOVE_AFTER_S = 60.0  # the server ends the requests of an entry that left before its files go


@dataclass(frozen=True, slots=True)
class FetchRules:
    file: Path
    folder: Path
    max_bytes: int
    max_fetch_s: float


@dataclass(slots=True)
class _Attempts:
    count: int = 0
    next_s: float = 0.0
    running: "asyncio.Task[None] | None" = None

    def failed(self, delay_s: float | None = None) -> None:
        self.count += 1
        self.next_s = time.monotonic() + (BACKOFF.delay_s(self.count) if delay_s is None else delay_s)


@dataclass(slots=True)
class PoolFolder:
    """`command`: the fetcher, in a process of its own; it reads credentials from its environment."""

    rules: FetchRules
    command: tuple[str, ...] = fetch_process.FETCHER
    remove_after_s: float = REMOVE_AFTER_S
    _attempts: dict[str, _Attempts] = field(default_factory=dict)  # by path of an entry
    _left: dict[str, float] = field(default_factory=dict)  # when folders lost their entry
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PARALLEL))
    _wrong: str = ""

    async def run(self) -> None:
        """Follow the file until cancelled; all fetchers are ended before this returns."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(POLL_S)
        finally:
            running = [one.running for one in self._attempts.values() if one.running]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def look(self) -> None:
        """Read the file once: start due downloads, remove folders without an entry. A wrong file changes nothing."""
        try:
            catalog = await asyncio.to_thread(read_catalog, self.rules.file)
        except CatalogError as error:
            if str(error) != self._wrong:
                log.error("the former file of the pool counts: %s", error)
            self._wrong = str(error)
            return
        self._wrong = ""
        wanted = {entry.path: entry for entry in catalog.entries.values() if entry.source}
        await self._remove(wanted)
        now_s = time.monotonic()
        for path, entry in wanted.items():
            if (self.rules.folder / path / MARKER).is_file():
                self._attempts.pop(path, None)
                continue
            attempts = self._attempts.setdefault(path, _Attempts())
            if attempts.running is None and now_s >= attempts.next_s:
                attempts.running = asyncio.create_task(self._bring(entry, attempts))

    async def _bring(self, entry: PoolEntry, attempts: _Attempts) -> None:
        try:
            async with self._slots:
                reason = await self._fetch(entry)
            if reason:
                attempts.failed()
                log.error("a model cannot be fetched: %s", reason, extra={"model": entry.name, "path": entry.path})
            else:
                log.info("fetched", extra={"model": entry.name, "path": entry.path})
        except Exception as error:  # nothing awaits this task, and other entries go on
            attempts.failed(BACKOFF.most_s)
            bug = None if isinstance(error, OSError) else error
            fields = {"model": entry.name, "path": entry.path}
            log.error("a model cannot be fetched: %s", error, exc_info=bug, extra=fields)
        finally:
            attempts.running = None

    async def _fetch(self, entry: PoolEntry) -> str:
        """Fetch an entry's files. Return why that failed, which the server shows; empty when the files are there."""
        assert entry.source, "others lie there already"
        folder, source = self.rules.folder / entry.path, entry.source
        folder.mkdir(parents=True, exist_ok=True)
        room = self.rules.max_bytes - await asyncio.to_thread(fetch_process.size_of, self.rules.folder)
        if room <= 0:
            reason = f"The pool has no room left for files: all of its models may have {self.rules.max_bytes} bytes."
            (folder / FETCH_ERROR).write_text(reason)
            return reason
        flags = {"--revision": source.revision, "--endpoint": source.endpoint, "--region": source.region}
        flags |= {"--account": source.account, "--format": entry.format, "--max-bytes": str(room)}
        given = (part for flag, value in flags.items() if value for part in (flag, value))
        return await self._ran(folder, ("--uri", source.uri, "--dest", str(folder), *given))

    async def _ran(self, folder: Path, arguments: Iterable[str]) -> str:
        """Run a fetcher. Return its error, which stays in FETCH_ERROR; empty, and no such file, when it succeeded."""
        report = folder / FETCH_ERROR
        code = await fetch_process.run(self.command, report, arguments, self.rules.max_fetch_s)
        if code == 0:
            report.unlink(missing_ok=True)
            return ""
        return report.read_text(errors="replace")[:MAX_ERROR_BYTES]

    async def _remove(self, wanted: dict[str, PoolEntry]) -> None:
        """Delete folders a while after their entry left: an entry may come back, and its requests may still run."""
        now_s = time.monotonic()
        tops = {Path(path).parts[0] for path in wanted}
        present = {one.name for one in self.rules.folder.iterdir() if one.is_dir()}
        self._left = {name: self._left.get(name, now_s) for name in present - tops}
        for name, since_s in list(self._left.items()):
            if now_s - since_s >= self.remove_after_s and not self._busy(name):
                log.info("removed", extra={"path": name})
                await asyncio.to_thread(shutil.rmtree, self.rules.folder / name, ignore_errors=True)

    def _busy(self, top: str) -> bool:
        """Whether a fetcher still writes into this folder, whose entry has left; the fetcher is cancelled."""
        found = [one for path, one in self._attempts.items() if Path(path).parts[0] == top and one.running]
        for one in found:
            if one.running:
                one.running.cancel()
        return bool(found)
