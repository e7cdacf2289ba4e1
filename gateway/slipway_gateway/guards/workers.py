"""Processes that look for patterns, personal data and JSON: a few, started when called, ended when they take long."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from slipway_contracts.guards import BLOCK, GuardBuiltin
from slipway_process.environment import for_isolated

from .finder import MAX_MESSAGE_BYTES, Look, Result
from .protocol import GuardFailed
from .schemas import JSONSCHEMA, UnusableSchema
from .verdict import BLOCKED, REDACTED, Span, Verdict, merged

log = logging.getLogger(__name__)
_LOAD_S = 120.0  # for loading what calls need
# Some recognizers load what they need when they first look at a text.
_SAMPLE = "Call +1 212 555 0187 or write to anna@example.com about card 4111 1111 1111 1111."
_RETRY_S = 1.0
_ROOT = Path(__file__).resolve().parents[2]  # where the gateway's package is
_RESULT = msgspec.json.Decoder(Result)
Begun = Callable[[], None]


def _nothing() -> None:
    return None


class _Worker:
    """One process. `loaded`: what it has loaded, so that the time of a call is that of looking."""

    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self.loaded: set[str] = set()
        self._killed: list[asyncio.subprocess.Process] = []

    def has_loaded(self, builtin: GuardBuiltin) -> bool:
        return self.process is not None and self.process.returncode is None and _needs(builtin) in self.loaded

    async def call(self, look: Look) -> Result:
        """Raises GuardFailed: the process is gone."""
        if self.process is None or self.process.returncode is not None:
            self.loaded.clear()
            self.process = await _started()
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin and stdout, "both are pipes"
        message = msgspec.json.encode(look)
        try:
            stdin.write(len(message).to_bytes(4) + message)
            await stdin.drain()
            size = int.from_bytes(await stdout.readexactly(4))
            if size > MAX_MESSAGE_BYTES:
                raise GuardFailed("what was found is too long")
            return _RESULT.decode(await stdout.readexactly(size))
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
            raise GuardFailed("its process ended") from None

    def kill(self) -> None:
        """Ends the process; the next call starts another one."""
        process, self.process = self.process, None
        self.loaded.clear()
        self._killed = [killed for killed in self._killed if killed.returncode is None]
        if process is not None:
            self._killed.append(process)
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def close(self) -> None:
        """Ends the process, and waits for the ends of all that were killed: nothing is left of them in the loop."""
        self.kill()
        for process in self._killed:
            assert process.stdin and process.stdout, "both are pipes"
            process.stdin.close()
            with contextlib.suppress(RuntimeError):  # a call that was not cancelled reads it
                await process.stdout.read()
            await process.wait()


async def _started() -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "slipway_gateway.guards.finder",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=for_isolated(1, _ROOT),
        )
    except OSError as error:
        raise GuardFailed(f"its process does not start: {error.strerror}") from None


class FinderPool:
    """At most `most` processes, each with one call at a time; other calls wait for one.

    A client's calls have all of them but one: whose calls take too long, and so end processes, leaves one to others.
    """

    def __init__(self, most: int) -> None:
        self._free: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        self._workers = [_Worker() for _ in range(most)]
        for worker in self._workers:
            self._free.put_nowait(worker)
        self._loading: set[asyncio.Task[None]] = set()
        # Of clients that have calls: the processes that each of them may take at a time.
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._is_closed = False

    async def verdict(self, builtin: GuardBuiltin, texts: Mapping[str, str], client: str = "") -> Verdict:
        """The decision about texts. The caller limits its time. `client`: whose share of the processes the call takes.

        Raises:
            GuardFailed: nothing can look for this, or not yet.
        """
        result = await self._result(builtin, _look(builtin, list(texts.values())), client)
        if result.problem or len(result.found) != len(texts):
            raise GuardFailed(result.problem or "its process found nothing for some texts")
        return _verdict(builtin, dict(zip(texts, result.found, strict=True)))

    async def misfits(
        self, builtin: GuardBuiltin, schema: str, texts: list[str], client: str = "", begun: Begun = _nothing
    ) -> list[str]:
        """Of each text, why it does not fit a JSON schema, or nothing. Without texts the schema alone is looked at.

        `begun`: called when a process gets it, after the wait for one.

        Raises:
            UnusableSchema: nothing can be checked by it.
            GuardFailed: nothing can check it, or not yet.
        """
        result = await self._result(builtin, Look(schema=schema, texts=texts), client, begun)
        if result.unusable:
            raise UnusableSchema(result.unusable)
        if result.problem or len(result.misfits) != len(texts):
            raise GuardFailed(result.problem or "its process found nothing for some texts")
        return result.misfits

    async def _result(self, builtin: GuardBuiltin, look: Look, client: str, begun: Begun = _nothing) -> Result:
        """What a process found. Raises GuardFailed."""
        if not self._workers:
            raise GuardFailed("the gateways run no process for it (--guard-processes)")
        share = self._shares.get(client)
        if share is None:
            share = self._shares[client] = asyncio.Semaphore(max(1, len(self._workers) - 1))
        await share.acquire()
        try:
            worker = await self._loaded_worker(builtin)
        except BaseException:
            share.release()
            raise
        begun()
        try:
            result = await worker.call(look)
        except BaseException:  # also a call that took too long
            worker.kill()
            self._load(worker, builtin, share)
            raise
        self._free.put_nowait(worker)
        share.release()
        return result

    async def _loaded_worker(self, builtin: GuardBuiltin) -> _Worker:
        """A free process that has loaded what a call needs. Raises GuardFailed: none has yet.

        Where a busy one has, the call waits: a client whose calls end processes must not make those of others fail.
        """
        worker = await self._free.get()
        while not worker.has_loaded(builtin):
            self._load(worker, builtin)
            if self._free.empty() and not any(one.has_loaded(builtin) for one in self._workers):
                raise GuardFailed("its process is being started")
            worker = await self._free.get()
        return worker

    def prepare(self, builtin: GuardBuiltin) -> None:
        """Has free processes load what a call needs, so that the first one has all of its time."""
        free = [self._free.get_nowait() for _ in range(self._free.qsize())]
        for worker in free:
            if worker.has_loaded(builtin):
                self._free.put_nowait(worker)
            else:
                self._load(worker, builtin)

    def _load(self, worker: _Worker, builtin: GuardBuiltin, share: asyncio.Semaphore | None = None) -> None:
        """Loading takes seconds, which the time of a call does not have. The worker is free again afterwards.

        `share`: of the client whose call ended the process; it has its place back then.
        """
        if self._is_closed:
            return
        task = asyncio.create_task(self._loaded(worker, builtin, share))
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def _loaded(self, worker: _Worker, builtin: GuardBuiltin, share: asyncio.Semaphore | None) -> None:
        try:
            async with asyncio.timeout(_LOAD_S):
                result = await worker.call(_look(builtin, [_SAMPLE]))
            if result.problem:
                log.error("a guard cannot look for what it should: %s", result.problem)
            worker.loaded.add(_needs(builtin))
        except (GuardFailed, TimeoutError) as error:
            log.error("a process that looks for patterns does not start: %s", error or "it takes too long")
            worker.kill()
            await asyncio.sleep(_RETRY_S)
        except BaseException:
            worker.kill()
            raise
        finally:
            self._free.put_nowait(worker)
            if share is not None:
                share.release()

    async def close(self) -> None:
        self._is_closed = True
        for task in self._loading:
            task.cancel()
        await asyncio.gather(*self._loading, return_exceptions=True)
        for worker in self._workers:
            await worker.close()


def _needs(builtin: GuardBuiltin) -> str:
    """What a process has to load for this, and keeps: jsonschema, Presidio for a language, or nothing."""
    if builtin.json is not None:
        return JSONSCHEMA
    return builtin.pii.language if builtin.pii else ""


def _look(builtin: GuardBuiltin, texts: list[str]) -> Look:
    pii = builtin.pii
    if builtin.json is not None:
        return Look(schema="{}")
    if pii is None:
        return Look(list(builtin.patterns), texts=texts)
    return Look(list(builtin.patterns), list(pii.entities), pii.min_score / 100, pii.language, texts)


def _verdict(builtin: GuardBuiltin, found: Mapping[str, list[tuple[int, int]]]) -> Verdict:
    spans = {
        path: merged(Span(start, end, builtin.replacement) for start, end in places)
        for path, places in found.items()
        if places
    }
    if not spans:
        return Verdict()
    return Verdict(BLOCKED, "it has what must not pass") if builtin.action == BLOCK else Verdict(REDACTED, spans=spans)
