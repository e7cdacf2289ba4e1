"""The HTTP process's client of the engine process: starts it, submits requests, and streams their events."""

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import msgspec

from slipway_process.serving.heartbeat import Heartbeat
from slipway_process.serving.restarts import EngineCrashed, EngineError, ModelRefused
from slipway_process.shares import Shares

from .. import environment
from ..models.adapters.errors import AdapterError
from .adapters.catalog import AdapterCatalog, CatalogEntry
from .messages import (
    LENGTH_BYTES,
    AdapterFailed,
    AdapterLoaded,
    AdapterReport,
    AdaptersChanged,
    AdapterUnloaded,
    EncodedCommands,
    Failed,
    LoadAdapter,
    Profile,
    Profiled,
    Ready,
    Start,
    Started,
    Step,
    UnloadAdapter,
    encode,
    from_engine,
    request_bytes,
)
from .request import FinishReason, Request, RequestOutput

log = logging.getLogger("slipway.engine")

ENGINE_DIED = "The engine process ended while it worked on this request."
ENGINE_DIED_BEFORE = "The engine process ended while this request waited for it."
RESTARTING = "The engine process ended and is being started again."
# A restart finds the model's files in the page cache and is faster than the first start; if it takes much longer than
# that one did, the engine hangs.
RELOAD_FACTOR, RELOAD_SLACK_S = 4.0, 60.0
EXIT_S = 10.0  # for a process that closed its socket to end, before it is killed


class RequestRefused(ValueError):
    """The engine cannot take the request; the message is the reason."""


class QueueFull(Exception):
    """Too many requests or prompt tokens wait. Nothing was sent to the engine; a later attempt may succeed."""


class ProfileBusy(Exception):
    """Only one profile runs at a time."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    requests: int
    tokens: int


class EngineClient:
    def __init__(
        self,
        queue: QueueLimits,
        slots: int,
        on_step: Callable[[Step], None],
        adapters: AdapterCatalog | None = None,
    ) -> None:
        """`adapters`: the names of adapters, which a new engine process is sent again."""
        self.adapters = adapters or AdapterCatalog("")
        self.on_adapter_load: Callable[[float | None], None] = lambda _: None  # gets the seconds; None: it failed
        self._loads: dict[str, asyncio.Future[AdapterLoaded]] = {}  # commanded, by path
        self._unloads: dict[str, asyncio.Future[None]] = {}  # by digest
        self.heartbeat = Heartbeat.create()
        self.ready: Ready | None = None
        self.slots = slots
        self._queue, self._on_step = queue, on_step
        self.kv_usage = 0.0  # after the last step, from 0 to 1
        self._streams: dict[str, asyncio.Queue[RequestOutput]] = {}
        self._places = Shares(slots + queue.requests)  # of requests that run or wait
        self._unstarted: dict[str, Request] = {}
        self._commands = EncodedCommands([], [])
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._profile: asyncio.Future[str] | None = None
        self._stopping = False  # the end of the engine process is then no crash
        self._load_limit_s: float | None = None  # None: the kubelet's probes limit the first start

    @property
    def in_flight(self) -> int:
        return len(self._streams)

    async def run(
        self,
        start: Start,
        threads: int,
        on_ready: Callable[[Ready], None],
        on_crash: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts the engine process and handles its messages until it ends. Can be called again after that.

        `on_crash` is called as soon as a serving engine closes its socket, before its process has ended.

        Raises:
            EngineCrashed: the engine served before it ended.
            ModelRefused: the engine gave a reason why it cannot serve.
            EngineError: the engine ended before it was ready, or a restart took too long.
        """
        self._expect_no_steps()
        loading = asyncio.timeout(self._load_limit_s)
        reason = ENGINE_DIED
        try:
            async with loading:
                reader = await self._spawn(start, threads)
                while True:
                    size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
                    message = from_engine.decode(await reader.readexactly(size))
                    if isinstance(message, Failed):
                        reason = message.reason
                    elif isinstance(message, Ready):
                        loading.reschedule(None)
                        self._serve(message)
                        on_ready(message)
                    else:
                        self._take(message)
        except (asyncio.IncompleteReadError, ConnectionError):
            served, self.ready = self.ready is not None, None
            # Immediately: the process may take long to end, and its restart may have to wait.
            self._expect_no_steps()
            if served and not self._stopping:
                on_crash()
                self._end_crashed()
            self.end_streams(ENGINE_DIED)
            kind = EngineCrashed if served else EngineError if reason == ENGINE_DIED else ModelRefused
            raise kind(await self._exit_reason(reason)) from None
        except TimeoutError:
            raise EngineError(f"The engine did not come back within {self._load_limit_s:.0f} s.") from None
        except Exception:  # a bug of this process, maybe because of what the engine computed
            if self.ready is not None and not self._stopping:
                on_crash()
                self._end_crashed()
            raise
        finally:
            self.ready = None
            self.end_streams(ENGINE_DIED)
            self._resolve_profile(EngineError(ENGINE_DIED))
            self._end_adapter_commands()
            self.stop()

    def _expect_no_steps(self) -> None:
        """Resets the heartbeat: an engine that loads makes no steps, and the liveness probe must not fail for that."""
        self.heartbeat.beat(0.0, steps=self.heartbeat.steps)

    def _serve(self, ready: Ready) -> None:
        self.ready = ready
        self._load_limit_s = self._load_limit_s or RELOAD_FACTOR * ready.load_seconds + RELOAD_SLACK_S
        for entry in self.adapters.entries:
            self.keep_adapter(entry)
        self.adapters.set_loaded({})

    async def stream(self, request: Request, *, admitted: bool = False) -> AsyncGenerator[RequestOutput, None]:
        """Submits the request and yields its events up to its end; the first one only marks that it starts to run.

        `admitted`: the request continues an answer that has run before, and is not refused when the queue is full.
        Closing the iterator early cancels the request within one step.

        Raises:
            EngineError: no engine serves now.
            QueueFull: too many requests or prompt tokens wait.
            RequestRefused: a number or text of the request cannot be encoded. Nothing was sent.
        """
        try:
            encoded = request_bytes(request)
        except ValueError as error:
            raise RequestRefused(f"The request cannot be computed: {error}.") from None
        self._admit(request, admitted=admitted)
        events = self._streams[request.id] = asyncio.Queue()
        self._send(submit=encoded)
        ended = False
        try:
            while not ended:
                event = await events.get()
                ended = event.finish is not None
                yield event
        finally:
            del self._streams[request.id]
            self._places.give_back(request.tenant)
            self._unstarted.pop(request.id, None)
            if not ended:
                self._send(cancel=request.id)

    async def profile(self, request: Profile) -> str:
        """Profiles the next steps. Returns a table of what they spend their time on, as text.

        Raises:
            EngineError: no engine serves now, or it ended during the profile.
            ProfileBusy: another profile runs.
        """
        if self.ready is None or self._writer is None:
            raise EngineError(self._not_ready_reason())
        if self._profile:
            raise ProfileBusy("Another profile is being taken.")
        table: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._profile = table
        try:
            self._writer.write(encode(request))
            return await table
        finally:
            self._profile = None

    async def load_adapter(self, path: str) -> AdapterLoaded:
        """Has the engine load an adapter, and waits for it.

        Raises:
            EngineError: no engine serves now, or it ended meanwhile.
            AdapterError: the adapter cannot be loaded; or one of this path is being loaded.
        """
        if self.ready is None:
            raise EngineError(self._not_ready_reason())
        if path in self._loads:
            raise AdapterError("An adapter of this path is being loaded.", "lora_path")
        loaded: asyncio.Future[AdapterLoaded] = asyncio.get_running_loop().create_future()
        self._loads[path] = loaded
        self._write(LoadAdapter(path))
        # A caller that leaves ends nothing: the engine loads on, and its report ends the command.
        return await asyncio.shield(loaded)

    def keep_adapter(self, entry: CatalogEntry) -> None:
        """Has the engine know an adapter that the catalog has.

        Another name with the same files may have been unloaded when this one was loaded and the catalog had it not yet.
        """
        self._write(LoadAdapter(entry.path, entry.digest))

    async def unload_adapter(self, digest: str) -> None:
        """Has the engine unload an adapter that no request uses. An engine that ends has unloaded it too."""
        if self.ready is None:
            return
        if digest not in self._unloads:
            self._unloads[digest] = asyncio.get_running_loop().create_future()
            self._write(UnloadAdapter(digest))
        await asyncio.shield(self._unloads[digest])

    def _take_adapter_report(self, report: AdapterReport) -> None:
        if isinstance(report, AdaptersChanged):
            self.adapters.set_loaded(report.sizes)
        elif isinstance(report, AdapterUnloaded):
            if unloaded := self._unloads.pop(report.digest, None):
                unloaded.set_result(None)
        elif isinstance(report, AdapterFailed):
            self.on_adapter_load(None)
            self._end_load(report.path, AdapterError(report.reason, report.field))
        else:
            self.on_adapter_load(report.seconds)
            if report.commanded:
                self._end_load(report.path, report)

    def _end_load(self, path: str, result: AdapterLoaded | Exception) -> None:
        loaded = self._loads.pop(path, None)
        if loaded is None:
            return
        if isinstance(result, Exception):
            loaded.set_exception(result)
            loaded.exception()  # its caller may have left
        else:
            loaded.set_result(result)

    def _end_adapter_commands(self) -> None:
        for path in list(self._loads):
            self._end_load(path, EngineError(ENGINE_DIED))
        for digest in list(self._unloads):
            self._unloads.pop(digest).set_result(None)

    def _write(self, message: LoadAdapter | UnloadAdapter) -> None:
        if self._writer and not self._writer.is_closing():
            self._writer.write(encode(message))

    def _resolve_profile(self, table: str | EngineError) -> None:
        # The caller may have been cancelled.
        if self._profile and not self._profile.done():
            if isinstance(table, str):
                self._profile.set_result(table)
            else:
                self._profile.set_exception(table)

    def end_streams(self, reason: str) -> None:
        """Ends all streams with FinishReason.LOST: another server can continue them."""
        for request_id in self._streams:
            self._emit(RequestOutput(request_id, finish=FinishReason.LOST, error=reason))

    def stop(self) -> None:
        """Closes the socket and kills the engine process if it still runs."""
        self._stopping = True
        if self._writer:
            self._writer.close()
        if self._process and self._process.returncode is None:
            self._process.kill()

    def _end_crashed(self) -> None:
        """Ends streams as CRASHED if they were being computed, because they may be the cause; others as LOST."""
        for request_id in self._streams:
            if request_id in self._unstarted:
                self._emit(RequestOutput(request_id, finish=FinishReason.LOST, error=ENGINE_DIED_BEFORE))
            else:
                self._emit(RequestOutput(request_id, finish=FinishReason.CRASHED, error=ENGINE_DIED))

    def _not_ready_reason(self) -> str:
        return RESTARTING if self.served else "The engine is not ready."

    @property
    def served(self) -> bool:
        """Whether an engine serves, or has served before."""
        return self._load_limit_s is not None

    def _admit(self, request: Request, *, admitted: bool) -> None:
        if self.ready is None:
            raise EngineError(self._not_ready_reason())
        if not admitted:
            self._check_queue(request)
        self._places.taken[request.tenant] += 1
        self._unstarted[request.id] = request

    def _check_queue(self, request: Request) -> None:
        """The last quarter of requests, and of tokens that wait, is for tenants that have none here."""
        if not self._places.room(request.tenant):
            raise QueueFull(f"{len(self._streams)} requests are running or waiting, which is {self._whose(request)}.")
        waiting = self._unstarted.values()
        waiting_tokens, limit = sum(one.known_tokens for one in waiting), self._queue.tokens
        if request.tenant and any(one.tenant == request.tenant for one in waiting):
            limit -= limit // 4
        if waiting_tokens and waiting_tokens + request.known_tokens > limit:
            raise QueueFull(f"{waiting_tokens} prompt tokens are waiting; the limit is {limit}.")

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests that the engine has not begun with, and the tokens of their prompts."""
        return len(self._unstarted), sum(request.known_tokens for request in self._unstarted.values())

    def _whose(self, request: Request) -> str:
        return "the limit" if len(self._streams) >= self._places.most else "the share of this tenant"

    def _send(self, *, submit: bytes | None = None, cancel: str | None = None) -> None:
        """Collects the commands of one iteration of the event loop into one message."""
        if not (self._commands.submit or self._commands.cancel):
            asyncio.get_running_loop().call_soon(self._flush)
        if submit:
            self._commands.submit.append(msgspec.Raw(submit))
        if cancel:
            self._commands.cancel.append(cancel)

    def _flush(self) -> None:
        # Each request was encoded alone when it arrived, so that encoding cannot fail here.
        commands, self._commands = self._commands, EncodedCommands([], [])
        if self._writer and not self._writer.is_closing():
            self._writer.write(encode(commands))

    def _take(self, message: Profiled | Started | Step | AdapterReport) -> None:
        if isinstance(message, AdapterReport):
            self._take_adapter_report(message)
        elif isinstance(message, Profiled):
            self._resolve_profile(message.table)
        elif isinstance(message, Started):
            self._mark_started(message.started)
        else:
            self._publish(message)

    def _publish(self, step: Step) -> None:
        self.kv_usage = step.kv_usage
        self._mark_started(step.started)
        for event in step.events:
            self._emit(event)
        self._on_step(step)

    def _mark_started(self, started: dict[str, int]) -> None:
        for request_id, cached_tokens in started.items():
            self._unstarted.pop(request_id, None)
            self._emit(RequestOutput(request_id, cached_tokens=cached_tokens))

    def _emit(self, event: RequestOutput) -> None:
        # A stream may have ended: its cancel command and the step's report crossed on the socket.
        if stream := self._streams.get(event.id):
            stream.put_nowait(event)

    async def _spawn(self, start: Start, threads: int) -> asyncio.StreamReader:
        self._stopping = False
        http_end, engine_end = socket.socketpair()
        with engine_end:
            descriptors = (engine_end.fileno(), self.heartbeat.fd)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "slipway_server.engine.process", *map(str, descriptors)),
                pass_fds=descriptors,
                stdin=asyncio.subprocess.DEVNULL,
                env=environment.for_engine(threads, start.kernels, start.log_level),
            )
        reader, self._writer = await asyncio.open_connection(sock=http_end)
        self._writer.write(encode(start))
        return reader

    async def _exit_reason(self, reason: str) -> str:
        assert self._process is not None, "only a started engine can end"
        try:
            async with asyncio.timeout(EXIT_S):
                status = await self._process.wait()
        except TimeoutError:
            self._process.kill()
            status = await self._process.wait()
        if reason != ENGINE_DIED:
            return reason
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"The engine process {how}."
