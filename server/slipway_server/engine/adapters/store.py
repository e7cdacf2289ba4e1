"""The adapters of the engine process: loads them on demand, holds their requests meanwhile, and unloads them.

Adapters are known by the digest of their files. One that gave way to others stays registered, and is read again for its
next request.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ..messages import AdapterFailed, AdapterLoaded, AdapterReport, AdaptersChanged, AdapterUnloaded
from ..request import FinishReason, Request, RequestOutput
from .loader import FailedAdapter, LoadedAdapter, Operations
from .residency import Residency

HOLD_S = 60.0  # for a request's adapter to be loaded
MAX_REGISTERED = 256
NO_ROOM = "The adapter is larger than all that may be loaded."
NOT_IN_TIME = "The adapter could not be loaded in time: others are in use."
CHANGED = "The files of the adapter have changed since it was loaded."


class Loader(Protocol):
    def load(self, path: str) -> None: ...

    def take(self) -> LoadedAdapter | FailedAdapter | None: ...

    def fileno(self) -> int: ...


@dataclass(slots=True)
class _Load:
    """A path that is to be read: for a command, for held requests, or for both. `digest`: what it must have, or ""."""

    path: str
    digest: str = ""
    commanded: bool = False


@dataclass(slots=True)
class _Held:
    request: Request
    since_s: float = field(default_factory=time.monotonic)

    def ends(self, now_s: float) -> bool:
        limit_s = HOLD_S if self.request.timeout_s is None else min(HOLD_S, self.request.timeout_s)
        return now_s - self.since_s > limit_s


class AdapterStore:
    def __init__(self, loader: Loader, operations: Operations, residency: Residency) -> None:
        self._loader, self._operations, self._residency = loader, operations, residency
        self._registered: dict[str, str] = {}  # path by digest
        self._pins: dict[str, str] = {}  # digest by request ID
        self._held: dict[str, _Held] = {}  # by request ID, in order
        self._loads: list[_Load] = []  # the first one is being read, or waits for room
        self._loaded: LoadedAdapter | None = None  # waits for room
        self._reading = False
        self._leaving: set[str] = set()  # digests to be unloaded when their last request ends
        self._ready: list[Request] = []
        self._refused: list[RequestOutput] = []
        self._reports: list[AdapterReport] = []

    def fileno(self) -> int:
        """The descriptor that is readable when `take_ready` may return something."""
        return self._loader.fileno()

    def slot_of(self, digest: str) -> int:
        """The slot of a request's adapter, which is pinned; -1 for no adapter."""
        return self._residency.slot_of(digest) if digest else -1

    # --- commands -----------------------------------------------------------------------------------------------------

    def load(self, path: str, digest: str = "") -> None:
        """Loads an adapter and reports the end. With its digest it is registered alone, as after a restart."""
        if digest:
            self._registered[digest] = path
        elif len(self._registered) + sum(load.commanded for load in self._loads) >= MAX_REGISTERED:
            reason = f"{MAX_REGISTERED} adapters are registered, which is the limit: unload one."
            self._reports.append(AdapterFailed(path, reason, "lora_name"))
        else:
            self._loads.append(_Load(path, commanded=True))

    def unload(self, digest: str) -> None:
        """Unloads an adapter when its last request has ended, and reports that."""
        self._registered.pop(digest, None)
        self._leaving.add(digest)

    # --- requests -----------------------------------------------------------------------------------------------------

    def hold(self, request: Request) -> None:
        """Holds a request until its adapter is loaded; `take_ready` returns it then.

        Raises:
            ValueError: there is no such adapter.
        """
        if request.adapter not in self._registered:
            raise ValueError(f"adapter {request.adapter[:12]!r} is not loaded")
        self._held[request.id] = _Held(request)

    def forget(self, request_id: str) -> None:
        """Drops what is kept for a request that has ended: its adapter may give way."""
        self._held.pop(request_id, None)
        self._ready = [request for request in self._ready if request.id != request_id]
        if digest := self._pins.pop(request_id, None):
            self._residency.unpin(digest)

    def take_ready(self) -> tuple[list[Request], list[RequestOutput]]:
        """Requests whose adapter is loaded and pinned, and final outputs of those that cannot run; each only once."""
        self._advance()
        ready, self._ready = self._ready, []
        refused, self._refused = self._refused, []
        return ready, refused

    def take_reports(self) -> list[AdapterReport]:
        reports, self._reports = self._reports, []
        return reports

    # --- progress -----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        if (result := self._loader.take()) is not None:
            self._reading = False
            self._take(result)
        if self._loaded is not None:
            self._install(self._loaded)
        self._remove_leaving()
        self._admit_held()
        self._begin_next()

    def _take(self, result: LoadedAdapter | FailedAdapter) -> None:
        load = self._loads[0]
        if isinstance(result, FailedAdapter):
            self._fail(load, result.reason, result.field)
        elif load.digest and result.digest != load.digest:
            self._fail(load, CHANGED, "lora_path")
        elif not self._residency.fits(result.size_bytes):
            self._fail(load, NO_ROOM, "lora_path")
        else:
            self._loaded = result

    def _fail(self, load: _Load, reason: str, param: str) -> None:
        self._loads.pop(0)
        if load.commanded:
            self._reports.append(AdapterFailed(load.path, reason, param))
        if load.digest:
            self._refuse((held for held in self._waiting_for(load.digest)), reason, FinishReason.ERROR)

    def _install(self, loaded: LoadedAdapter) -> None:
        """Puts a loaded adapter into a slot as soon as there is room for it."""
        load = self._loads[0]
        if not self._residency.has(loaded.digest):
            victims = self._residency.make_room(loaded.size_bytes)
            if victims is None:
                return
            for digest in victims:
                self._evict(digest)
            slot = self._residency.add(loaded.digest, loaded.size_bytes)
            for (layer, operation), prepared in loaded.prepared.items():
                self._operations[layer][operation].adapt(slot, prepared)
        self._loads.pop(0)
        self._loaded = None
        if load.commanded:
            self._registered[loaded.digest] = loaded.path
            if loaded.digest in self._leaving:  # another name had it, and is gone
                self._leaving.remove(loaded.digest)
                self._reports.append(AdapterUnloaded(loaded.digest))
        report = AdapterLoaded(
            loaded.path, loaded.digest, loaded.rank, loaded.size_bytes, loaded.seconds, load.commanded
        )
        self._reports += [report, AdaptersChanged(self._residency.sizes)]

    def _evict(self, digest: str) -> None:
        slot = self._residency.remove(digest)
        for operations in self._operations:
            for operation in operations.values():
                operation.adapt(slot, None)

    def _remove_leaving(self) -> None:
        for digest in [digest for digest in self._leaving if not self._is_used(digest)]:
            self._leaving.remove(digest)
            if self._residency.has(digest):
                self._evict(digest)
            self._reports += [AdapterUnloaded(digest), AdaptersChanged(self._residency.sizes)]

    def _is_used(self, digest: str) -> bool:
        return self._residency.in_use(digest) or any(self._waiting_for(digest))

    def _admit_held(self) -> None:
        now_s = time.monotonic()
        for name, held in list(self._held.items()):
            if self._residency.pin(held.request.adapter):
                self._pins[name] = held.request.adapter
                self._ready.append(held.request)
                del self._held[name]
            elif held.ends(now_s):
                reason = FinishReason.LOST if held.request.timeout_s is None else FinishReason.DEADLINE
                self._refuse([held], NOT_IN_TIME, reason)

    def _begin_next(self) -> None:
        wanted = {load.digest for load in self._loads}
        for held in self._held.values():
            digest = held.request.adapter
            if digest not in wanted and not self._residency.has(digest):
                wanted.add(digest)
                self._loads.append(_Load(self._registered.get(digest, ""), digest))
        if self._loads and not self._reading and self._loaded is None:
            self._reading = True
            self._loader.load(self._loads[0].path)

    def _waiting_for(self, digest: str) -> list[_Held]:
        return [held for held in self._held.values() if held.request.adapter == digest]

    def _refuse(self, refused: Iterable[_Held], reason: str, finish: FinishReason) -> None:
        for held in list(refused):
            del self._held[held.request.id]
            self._refused.append(RequestOutput(held.request.id, finish=finish, error=reason))
