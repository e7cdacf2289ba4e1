"""Reads the progress of pods that download a model, in the background, and keeps their last answers."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import aiohttp

from slipway_operator.api.objects import ObjectKey
from slipway_operator.fetching import page
from slipway_operator.manifests.engines.profile import HTTP_PORT
from slipway_operator.model.cluster.observed import Pod, PodDownload

PORT = HTTP_PORT
EVERY_S = 4.5  # between two rounds, each of all pods of a ModelDeployment; longer than between its reconciles
ROUNDS_PER_S = 20  # rounds of all ModelDeployments: each may cause the write of a status
TIMEOUT_S = 2.0
CONCURRENCY = 32
OF_A_NAMESPACE = 8  # so that pods that hang in one namespace delay no other namespace
KEPT_S = 30.0  # how long an answer is kept while later reads fail

log = logging.getLogger(__name__)

Target = tuple[str, str]  # name and address of a pod


@dataclass(frozen=True, slots=True)
class _Known:
    download: PodDownload
    read_at: float


@dataclass(slots=True)
class _Round:
    """The reads of the pods of one ModelDeployment: the one in progress, and the answers of the last one."""

    began_at: float = float("-inf")
    task: asyncio.Task[None] | None = None
    known: dict[Target, _Known | None] = field(default_factory=dict)


def new_session() -> aiohttp.ClientSession:
    """Return a session with its own connections, so that pods that hang delay no other requests."""
    connector = aiohttp.TCPConnector(limit=CONCURRENCY, force_close=True)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)


class DownloadReader:
    """Keeps the last answers of each ModelDeployment with pods that download."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        changed: Callable[[ObjectKey], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`session`: from `new_session`. `changed` is called with each ModelDeployment whose answers changed."""
        self._session, self._changed, self._clock = session, changed, clock
        self._rounds: dict[ObjectKey, _Round] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._slots_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def read(self, key: ObjectKey, pods: Sequence[Pod]) -> dict[str, PodDownload | None]:
        """Return the last answers by pod name, and start a task that reads new ones when they are due.

        None: the pod has no answer of the last KEPT_S. A pod that was not read yet is missing.
        """
        if not pods:
            self.forget(key)
            return {}
        targets = {(pod.name, pod.address) for pod in pods}
        item = self._rounds.setdefault(key, _Round())
        item.known = {target: known for target, known in item.known.items() if target in targets}
        if item.task is None and self._clock() - item.began_at >= max(EVERY_S, len(self._rounds) / ROUNDS_PER_S):
            item.began_at = self._clock()
            item.task = asyncio.create_task(self._run(key, item, sorted(targets)), name=f"downloads of {'/'.join(key)}")
            self._tasks.add(item.task)
            item.task.add_done_callback(self._tasks.discard)
        return _answers(item.known)

    def forget(self, key: ObjectKey) -> None:
        """Drop what is known of a ModelDeployment; reads in progress end by themselves."""
        self._rounds.pop(key, None)

    async def close(self) -> None:
        """Cancel all reads and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, key: ObjectKey, item: _Round, targets: Sequence[Target]) -> None:
        """Read all pods of a round, then replace their answers together and report a change."""
        try:
            own = self._slots_of.setdefault(key[0], asyncio.Semaphore(OF_A_NAMESPACE))
            found = await asyncio.gather(*(self._answer(own, address) for _, address in targets))
            now, former = self._clock(), _answers(item.known)
            item.known = {
                target: _Known(download, now) if download else _kept(item.known.get(target), now)
                for target, download in zip(targets, found, strict=True)
            }
            if _answers(item.known) != former and self._rounds.get(key) is item:
                self._changed(key)
        except Exception:
            log.exception("a bug: reading how far downloads are raised")
        finally:
            item.task = None

    async def _answer(self, own: asyncio.Semaphore, address: str) -> PodDownload | None:
        host = f"[{address}]" if ":" in address else address
        limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with own, self._slots:  # the shared semaphore last: no read holds it while it waits for the namespace's
            try:
                async with self._session.get(
                    f"http://{host}:{PORT}/metrics",
                    timeout=limit,
                    allow_redirects=False,
                    headers={"Accept-Encoding": "identity"},
                ) as response:
                    return page.parse(await _body(response)) if response.status == 200 else None
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                log.debug("the download of the pod at %s cannot be read: %s", address, error)
                return None


def _answers(known: Mapping[Target, _Known | None]) -> dict[str, PodDownload | None]:
    return {name: answer.download if answer else None for (name, _), answer in known.items()}


def _kept(known: _Known | None, now: float) -> _Known | None:
    return known if known and now - known.read_at < KEPT_S else None


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Return the body; of one that is too large, a part that is longer than LARGEST_BYTES."""
    body = b""
    while len(body) <= page.LARGEST_BYTES and (more := await response.content.read(page.LARGEST_BYTES + 1)):
        body += more
    return body
