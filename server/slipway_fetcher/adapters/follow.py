"""Keeps the adapters of an engine equal to a file: fetches and loads what is missing, unloads what has left.

After a restart of either it goes on from the engine's list and from the folders.
"""

import asyncio
import contextlib
import json
import logging
import shutil
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slipway_contracts.adapters import MAX_REASON, AdapterEntry, AdapterReport, AdapterState
from slipway_process.backoff import Backoff
from slipway_process.model_folder.catalog import FETCH_ERROR, MAX_ERROR_BYTES
from slipway_process.termination import DATA_ERROR

from .. import fetch_process, marker
from ..folder import PEFT_FORMAT, link
from .credentials import withheld
from .engine import EngineAdapter, EngineApi, EngineBusyError, EngineDownError, EngineRefusedError
from .file import AdapterFileError, NoFileError, alias_of, folder_of, name_of, read_file
from .kept_folders import KEPT_S, KeptFolders

log = logging.getLogger("slipway.adapter_loader")

POLL_S = 1.0
PARALLEL = 2  # downloads at a time
FETCHES, LOADS = Backoff(4.0, 300.0), Backoff(1.0, 60.0)  # between two attempts for one entry
# An adapter that cannot be brought holds the pod's other work for so many attempts, and at most this long: pods must
# start while the source of one adapter is away.
HOLD_ATTEMPTS, HOLD_S = 3, 600.0
PIN = "pin.json"
_State = Literal["waiting", "fetching", "loading", "loaded", "failed"]
_NO_ROOM = "There is no room left for files: all adapters together may have {} bytes."


@dataclass(frozen=True, slots=True)
class LoaderRules:
    file: Path
    folder: Path
    max_bytes: int
    max_fetch_s: float


@dataclass(slots=True)
class Counts:
    """Since the start, by result."""

    fetches: dict[str, int] = field(default_factory=lambda: {"ok": 0, "failed": 0})
    loads: dict[str, int] = field(default_factory=lambda: {"ok": 0, "failed": 0})
    unloads: int = 0


@dataclass(slots=True)
class _Held:
    """An entry and how far it is. `digest`: of what the engine loaded. `refused`: by the engine, until it restarts."""

    entry: AdapterEntry
    folder: Path
    since_s: float
    state: AdapterState = field(init=False)
    digest: str = ""
    failed: bool = False
    refused: bool = False
    failures: int = 0
    next_s: float = 0.0
    running: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        self.shows("waiting")

    def shows(self, state: _State, reason: str = "", digest: str = "") -> None:
        entry = self.entry
        self.state = AdapterState(entry.name, entry.revision, state, digest, reason[:MAX_REASON])

    def waits(self, reason: str, backoff: Backoff) -> None:
        """An attempt failed that may succeed later."""
        self.failures += 1
        self.next_s = time.monotonic() + backoff.delay_s(self.failures)
        self.shows("waiting", reason)

    def fails(self, reason: str, *, by_engine: bool = False) -> None:
        """No attempt would succeed."""
        self.failed, self.refused = True, by_engine
        self.shows("failed", reason)

    def follows(self, entry: AdapterEntry) -> None:
        """The same revision of the same source, whose digest is recorded now: what the engine has stays."""
        if entry != self.entry:
            self.entry = entry
            self.failed = self.refused = False

    @property
    def is_settled(self) -> bool:
        """Whether the pod may be ready with the entry as it is."""
        ended = self.state.state in ("loaded", "failed") or self.failures >= HOLD_ATTEMPTS
        return ended or time.monotonic() - self.since_s > HOLD_S


class AdapterLoader:
    """`command`: the fetcher, in a process of its own; it reads credentials from its environment."""

    def __init__(self, rules: LoaderRules, engine: EngineApi, command: tuple[str, ...] = fetch_process.FETCHER) -> None:
        self.rules, self.engine, self.command = rules, engine, command
        self.counts = Counts()
        self.wrong = ""  # why the file is not followed
        self.ready = False  # all that the file listed at first is loaded, or has failed
        self.looked_s = time.monotonic()
        self._held: dict[str, _Held] = {}  # by the engine's name
        self._first: tuple[str, ...] | None = None
        self._was_read = False  # whether there was a right file since the start
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._kept = KeptFolders(KEPT_S if engine.reads_later else 0.0)
        self._former_counted = False  # folders of an earlier loader: it may have unloaded their adapters just now
        self._slots = asyncio.Semaphore(PARALLEL)

    @property
    def report(self) -> AdapterReport:
        return AdapterReport(tuple(held.state for held in tuple(self._held.values())))

    async def run(self) -> None:
        """Follows the file until cancelled; all fetchers are ended before this returns."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(POLL_S)
        finally:
            running = [held.running for held in self._held.values() if held.running] + list(self._leaving.values())
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def look(self) -> None:
        """Compares file, folders and engine once, and begins what is due. A wrong file changes nothing."""
        self._follow()
        try:
            present = await asyncio.to_thread(self.engine.adapters)
        except EngineDownError as error:
            self._engine_is_down(str(error))
            present = None
        except EngineBusyError as error:  # what it has loaded stays so
            log.warning("%s", error)
            present = None
        if present is not None and self._was_read:
            await self._remove(present)
        for name, held in self._held.items():
            self._advance(held, present.get(name) if present else None, engine_is_up=present is not None)
        self.ready = self.ready or (
            self._first is not None and all(self._held[n].is_settled for n in self._first if n in self._held)
        )
        self.looked_s = time.monotonic()

    def _follow(self) -> None:
        try:
            entries = read_file(self.rules.file)
        except AdapterFileError as error:
            if isinstance(error, NoFileError) and self._first is None:
                self._first = ()  # a deployment without adapters has none; what the engine has may stay
                return
            if str(error) != self.wrong:
                log.error("the former file counts: %s", error)
            self.wrong = str(error)
            return
        self.wrong, self._was_read = "", True
        listed = {name_of(entry): entry for entry in entries}
        for name, held in tuple(self._held.items()):
            if name in listed and listed[name].source == held.entry.source:
                held.follows(listed[name])
                continue
            del self._held[name]
            if held.running:
                held.running.cancel()
        for name, entry in listed.items():
            if name not in self._held:
                self._held[name] = _Held(entry, self.rules.folder / folder_of(entry), time.monotonic())
        if self._first is None:
            self._first = tuple(listed)

    def _engine_is_down(self, reason: str) -> None:
        self._kept.engine_ended()
        for held in self._held.values():
            if held.state.state == "loaded" or held.refused:
                held.digest, held.failed, held.refused, held.failures, held.next_s = "", False, False, 0, 0.0
                held.shows("waiting", reason)

    def _advance(self, held: _Held, present: EngineAdapter | None, *, engine_is_up: bool) -> None:
        """Begins the next step of an entry, if it is due."""
        leaves = name_of(held.entry) in self._leaving  # from the engine, with what was listed before
        if held.running or held.failed or leaves or time.monotonic() < held.next_s:
            return
        entry = held.entry
        files = marker.read(held.folder, entry.source.uri, entry.source.revision)
        if files is not None and entry.digest not in ("", files.digest):
            # Another pod's files are the revision's: the engine may have these, and loads the others in their place.
            held.digest = files.digest
            held.running = asyncio.create_task(self._run(held, self._fetch(held, serves=False)))
        elif files is None:
            kept = present is not None and present.loaded and bool(held.digest)
            held.running = asyncio.create_task(self._run(held, self._fetch(held, serves=kept)))
        elif not engine_is_up:
            return
        elif present is None or present.root != self._path_of(held, files) or held.digest not in ("", files.digest):
            held.running = asyncio.create_task(self._run(held, self._load(held, files, reload=present is not None)))
        elif not Path(self._path_of(held, files)).is_dir():  # the files are there again, and their alias is not
            held.running = asyncio.create_task(self._run(held, self._alias(held, files)))
        else:
            held.digest, held.failures = files.digest, 0
            held.shows("loaded", digest=files.digest)

    async def _run(self, held: _Held, step: Coroutine[Any, Any, None]) -> None:
        try:
            await step
        except Exception as error:  # nothing awaits this task, and other entries go on
            bug = None if isinstance(error, OSError) else error
            log.error("an adapter cannot be brought: %s", error, exc_info=bug, extra=_about(held.entry))
            held.waits(f"{type(error).__name__}: {error}", FETCHES)
        finally:
            held.running = None

    async def _fetch(self, held: _Held, *, serves: bool) -> None:
        """Fetches an entry's files. `serves`: the engine has it, and only its files are gone."""
        async with self._slots:
            if not serves:
                held.shows("fetching")
            room = self.rules.max_bytes - await asyncio.to_thread(fetch_process.size_of, self.rules.folder)
            if room <= 0:
                held.waits(_NO_ROOM.format(self.rules.max_bytes), FETCHES)
                return
            held.folder.mkdir(parents=True, exist_ok=True)
            report = held.folder / FETCH_ERROR
            arguments = _arguments(held.entry, held.folder, room)
            hidden = withheld(held.entry.source)
            code = await fetch_process.run(self.command, report, arguments, self.rules.max_fetch_s, without=hidden)
        self.counts.fetches["failed" if code else "ok"] += 1
        if not code:
            held.failures, held.next_s = 0, 0.0
            log.info("fetched", extra=_about(held.entry))
            return
        reason = report.read_text(errors="replace")[:MAX_ERROR_BYTES]
        log.error("an adapter cannot be fetched: %s", reason, extra=_about(held.entry))
        former = held.state
        if code == DATA_ERROR:
            held.fails(reason)
        else:
            held.waits(reason, FETCHES)
        if serves:
            held.state, held.failed = former, False

    def _path_of(self, held: _Held, files: marker.Marker) -> str:
        """The path by which the engine reads an entry's files."""
        return str(alias_of(held.folder, files.digest).absolute()) if self.engine.caches_by_path else files.path

    async def _alias(self, held: _Held, files: marker.Marker) -> None:
        if self.engine.caches_by_path:
            link(alias_of(held.folder, files.digest), Path(files.path))

    async def _load(self, held: _Held, files: marker.Marker, *, reload: bool) -> None:
        """Has the engine load an entry. `reload`: it has other files under this name."""
        name, path, digest = name_of(held.entry), self._path_of(held, files), files.digest
        await self._alias(held, files)
        held.digest = ""
        held.shows("loading")
        try:
            if reload:
                await asyncio.to_thread(self.engine.unload, name)
            await asyncio.to_thread(self.engine.load, name, path)
        except EngineRefusedError as error:
            self.counts.loads["failed"] += 1
            log.error("the engine refuses an adapter: %s", error, extra=_about(held.entry))
            held.fails(str(error), by_engine=True)
        except EngineBusyError as error:
            self.counts.loads["failed"] += 1
            held.waits(str(error), LOADS)
        else:
            self.counts.loads["ok"] += 1
            held.digest, held.failures, held.next_s = digest, 0, 0.0
            held.shows("loaded", digest=digest)
            log.info("loaded", extra=_about(held.entry) | {"digest": digest})

    async def _remove(self, present: Mapping[str, EngineAdapter]) -> None:
        """Begins to unload adapters of this folder that the file does not list, and deletes folders without any."""
        top = str(self.rules.folder.absolute())
        for name, adapter in present.items():
            if name not in self._held and name not in self._leaving and _below(adapter, top):
                self._leaving[name] = asyncio.create_task(self._unload(name, _below(adapter, top)))
        kept = {held.folder.name for held in self._held.values()}
        kept |= {_below(adapter, top).partition("/")[0] for adapter in present.values()}
        folders = [folder for folder in self.rules.folder.iterdir() if folder.is_dir()]
        if not self._former_counted:
            self._former_counted = True
            for folder in folders:
                self._kept.add(folder.name)
        for folder in folders:
            if folder.name not in kept and folder.name not in self._kept:
                log.info("removed", extra={"path": folder.name})
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _unload(self, name: str, below: str) -> None:
        try:
            self._kept.add(below.partition("/")[0])
            await asyncio.to_thread(self.engine.unload, name)
            self.counts.unloads += 1
            log.info("unloaded", extra={"adapter": name})
            for held in self._held.values():  # one that was refused may have room now
                if held.refused:
                    held.failed = held.refused = False
        except (EngineBusyError, EngineDownError, EngineRefusedError) as error:
            log.warning("an adapter cannot be unloaded: %s", error, extra={"adapter": name})
            await asyncio.sleep(LOADS.initial_s)
        finally:
            del self._leaving[name]


def _below(adapter: EngineAdapter, top: str) -> str:
    """The path of an adapter below a folder; empty where it lies elsewhere."""
    root = adapter.root or ""
    return root.removeprefix(f"{top}/") if root.startswith(f"{top}/") else ""


def _arguments(entry: AdapterEntry, folder: Path, room: int) -> list[str]:
    source = entry.source
    flags = {"--uri": source.uri, "--dest": str(folder), "--format": PEFT_FORMAT, "--max-bytes": str(room)}
    flags |= {"--revision": source.revision, "--endpoint": source.endpoint, "--region": source.region}
    flags["--account"] = source.account
    pin = folder / PIN
    if entry.digest:
        pin.write_text(json.dumps({"digest": entry.digest}))
        flags["--pin-file"] = str(pin)
    else:
        with contextlib.suppress(FileNotFoundError):
            pin.unlink()
    return [part for flag, value in flags.items() if value for part in (flag, value)]


def _about(entry: AdapterEntry) -> dict[str, str]:
    return {"adapter": entry.name, "revision": entry.revision}
