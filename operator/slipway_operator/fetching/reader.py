"""Reads the progress of pods that download a model, in the background, and keeps their last answers."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import aiohttp

from slipway_operator.api.objects import ObjectKey
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.fetching import page
from slipway_operator.manifests.engines.profile import HTTP_PORT
from slipway_operator.model.cluster import downloads
from slipway_operator.model.cluster.observed import Observed, Pod, PodDownload
from slipway_operator.turns import Turns
from slipway_process.network.guarded import read_body

PORT = HTTP_PORT
EVERY_S = 4.5  # between two rounds, each of all pods of a ModelDeployment; longer than between its reconciles
ROUNDS_PER_S = 20  # rounds of all namespaces, in equal shares: each may cause the write of a status
TIMEOUT_S = 2.0
CONCURRENCY = 32
OF_A_NAMESPACE = 8
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


class DownloadReader(Component):
    """Keeps the last answers of each ModelDeployment with pods that download."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        changed: Callable[[ObjectKey], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`session`: from `new_session`. `changed` is called with each ModelDeployment whose answers changed."""
        self._session, self._changed, self._clock = session, changed, clock
        self._rounds: dict[str, dict[ObjectKey, _Round]] = {}  # by namespace
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = Turns(CONCURRENCY, OF_A_NAMESPACE)

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with the last answers of pods that download."""
        pods = [pod for _, pod in downloads.fetching(observed)]
        return replace(observed, downloads=self.read(deployment.key, pods))

    def read(self, key: ObjectKey, pods: Sequence[Pod]) -> dict[str, PodDownload | None]:
        """Return the last answers by pod name, and start a task that reads new ones when they are due.

        None: the pod has no answer of the last KEPT_S. A pod that was not read yet is missing.
        """
        if not pods:
            self.forget(key)
            return {}
        targets = {(pod.name, pod.address) for pod in pods}
        item = self._rounds.setdefault(key[0], {}).setdefault(key, _Round())
        item.known = {target: known for target, known in item.known.items() if target in targets}
        if item.task is None and self._clock() - item.began_at >= self._every_s(key[0]):
            item.began_at = self._clock()
            item.task = asyncio.create_task(self._run(key, item, sorted(targets)), name=f"downloads of {'/'.join(key)}")
            self._tasks.add(item.task)
            item.task.add_done_callback(self._tasks.discard)
        return _answers(item.known)

    def forget(self, key: ObjectKey) -> None:
        """Drop what is known of a ModelDeployment; reads in progress end by themselves."""
        of_namespace = self._rounds.get(key[0], {})
        of_namespace.pop(key, None)
        if not of_namespace:
            self._rounds.pop(key[0], None)

    async def close(self) -> None:
        """Cancel all reads and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _every_s(self, namespace: str) -> float:
        """Seconds between two rounds of a ModelDeployment: one with many neighbours is read less often."""
        share_per_s = ROUNDS_PER_S / len(self._rounds)
        return max(EVERY_S, len(self._rounds[namespace]) / share_per_s)

    async def _run(self, key: ObjectKey, item: _Round, targets: Sequence[Target]) -> None:
        """Read all pods of a round, then replace their answers together and report a change."""
        try:
            found = await asyncio.gather(*(self._answer(key[0], address) for _, address in targets))
            now, former = self._clock(), _answers(item.known)
            item.known = {
                target: _Known(download, now) if download else _kept(item.known.get(target), now)
                for target, download in zip(targets, found, strict=True)
            }
            if _answers(item.known) != former and self._rounds.get(key[0], {}).get(key) is item:
                self._changed(key)
        except Exception:
            log.exception("a bug: reading how far downloads are raised")
        finally:
            item.task = None

    async def _answer(self, namespace: str, address: str) -> PodDownload | None:
        host = f"[{address}]" if ":" in address else address
        limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with self._turns.turn(namespace):
            try:
                async with self._session.get(
                    f"http://{host}:{PORT}/metrics",
                    timeout=limit,
                    allow_redirects=False,
                    headers={"Accept-Encoding": "identity"},
                ) as response:
                    body = await read_body(response, page.LARGEST_BYTES) if response.status == 200 else None
                    return None if body is None else page.parse(body)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                log.debug("the download of the pod at %s cannot be read: %s", address, error)
                return None


def _answers(known: Mapping[Target, _Known | None]) -> dict[str, PodDownload | None]:
    return {name: answer.download if answer else None for (name, _), answer in known.items()}


def _kept(known: _Known | None, now: float) -> _Known | None:
    return known if known and now - known.read_at < KEPT_S else None
