"""Downloads objects to a folder, several ranges at a time: of one large file as of many small ones."""

import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import obstore
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from .. import folder
from ..checksums.following import FollowingDigest
from ..downloads import FETCH, DownloadProgress
from ..folder import FetchError
from . import failures, listing
from .failures import PassingStoreError, StoreErrors
from .journal import Journal
from .listing import StoredObject

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import ObjectStore

log = logging.getLogger(__name__)

Part = TypeVar("Part")

PART_BYTES = 16 * 2**20
CHUNK_BYTES = 128 * 2**10  # for larger chunks the library copies several into one, in newly allocated memory
PARALLEL = 8  # ranges at a time; each holds a few chunks
FILES = 4  # files whose ranges take turns, so that this many digests are computed at a time
ATTEMPTS, BACKOFF_S = 5, 0.5


@dataclass(frozen=True, slots=True)
class _ObjectPart:
    name: str
    stored: StoredObject
    number: int
    begin: int
    end: int


class ObjectDownload:
    """Downloads the files of one folder of a store."""

    def __init__(self, store: "ObjectStore", errors: StoreErrors, target: Path, journal: Journal) -> None:
        self._store, self._errors, self._target, self._journal = store, errors, target, journal
        self._lock = threading.Lock()
        self._digests: dict[str, FollowingDigest] = {}
        self._etags: dict[str, str] = {}  # for files without an ETag in the list: the ETag of the first answer

    def run(self, files: Mapping[str, StoredObject]) -> None:
        """Download into the target folder all parts that the journal does not have.

        Raises:
            FetchError: when a file cannot be fetched, or changed meanwhile.
            DiskFullError: when there is no room.
        """
        total = sum(stored.size for stored in files.values())
        done = {name: self._journal.done(name, stored, PART_BYTES) for name, stored in files.items()}
        needed = total - sum(_size(files[name], number) for name, numbers in done.items() for number in numbers)
        folder.check_room(self._target, needed)
        self._prepare(files)
        progress = DownloadProgress("fetched", total, total - needed, FETCH)
        if needed < total:
            log.info("continuing: %d of %d MB are here", (total - needed) // 10**6, total // 10**6)
        self._digests = {
            name: FollowingDigest(folder.inside(self._target, name), stored.size, PART_BYTES, done[name])
            for name, stored in files.items()
        }
        parts = in_turns(_parts(name, stored) for name, stored in files.items())
        self._get_all((part for part in parts if part.number not in done[part.name]), progress)
        progress.log_rate()

    def _prepare(self, files: Mapping[str, StoredObject]) -> None:
        for name, stored in files.items():
            path = folder.inside(self._target, name)
            with folder.writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("ab"):
                    os.truncate(path, stored.size)

    def _get_all(self, parts: Iterator[_ObjectPart], progress: DownloadProgress) -> None:
        failed = threading.Event()

        def work() -> None:
            while not failed.is_set():
                with self._lock:
                    part = next(parts, None)
                if part is None:
                    return
                try:
                    self._tried(part, progress)
                except BaseException:
                    failed.set()
                    raise

        with ThreadPoolExecutor(PARALLEL) as pool:
            jobs = [pool.submit(work) for _ in range(PARALLEL)]
        for job in jobs:
            job.result()

    def _tried(self, part: _ObjectPart, progress: DownloadProgress) -> None:
        retrying = Retrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(multiplier=BACKOFF_S),
            retry=retry_if_exception_type(PassingStoreError),
            before_sleep=partial(_log_failure, part.name),
            reraise=True,
        )
        retrying(self._get, part, progress)

    def _get(self, part: _ObjectPart, progress: DownloadProgress) -> None:
        path = folder.inside(self._target, part.name)
        with folder.writing(path):
            file = os.open(path, os.O_WRONLY)
        try:
            self._write(file, path, part, progress)
        except FetchError:
            raise
        except Exception as error:
            sentence = self._errors.of(error)
            if failures.is_final(error) or not isinstance(sentence, PassingStoreError):
                raise sentence from None
        else:
            self._journal.add(part.name, part.stored, PART_BYTES, part.number)
            self._digests[part.name].finish(part.number)
            return
        finally:
            os.close(file)
        # Outside of the handler: the error must not keep the connection while the next try waits.
        raise sentence

    def _write(self, file: int, path: Path, part: _ObjectPart, progress: DownloadProgress) -> None:
        options: GetOptions = {"range": (part.begin, part.end)}
        if part.stored.etag:
            options["if_match"] = f'"{part.stored.etag}"'
        answer = obstore.get(self._store, part.stored.key, options=options)
        self._check(answer, part)
        at = part.begin
        try:
            for chunk in answer.stream(min_chunk_size=CHUNK_BYTES):
                size = len(chunk)
                if at + size > part.end:
                    shown = self._errors.location.shown
                    raise FetchError(f"{shown}: the store sends more of {part.name} than it lists.")
                with folder.writing(path):
                    _write_at(file, memoryview(chunk), at)
                at += size
                progress.add(size)
            if at != part.end:
                raise PassingStoreError(f"{part.name} broke off after byte {at} of {part.end}.")
        except BaseException:
            progress.correct(part.begin - at)  # the next try gets the part from its beginning
            raise

    def _check(self, answer: "GetResult", part: _ObjectPart) -> None:
        """Raise FetchError for an answer of another object or range: not every store honours If-Match."""
        etag = listing.plain(answer.meta.get("e_tag"))
        with self._lock:
            expected = part.stored.etag or self._etags.setdefault(part.name, etag)
        if (etag and expected and etag != expected) or int(answer.meta["size"]) != part.stored.size:
            raise FetchError(
                f"{self._errors.location.shown} changed during the download: {part.name} is another one now. The next "
                "try takes what is there then."
            )
        if tuple(answer.range) != (part.begin, part.end):
            raise FetchError(f"{self._errors.location.shown}: the store answers with other bytes of {part.name}.")


def _parts(name: str, stored: StoredObject) -> Iterator[_ObjectPart]:
    for number, begin in enumerate(range(0, stored.size, PART_BYTES)):
        yield _ObjectPart(name, stored, number, begin, min(begin + PART_BYTES, stored.size))


def in_turns(files: Iterator[Iterator[Part]]) -> Iterator[Part]:
    """Yield the parts of FILES files in turns; the next file takes the place of one that has no more parts."""
    taken = deque(itertools.islice(files, FILES))
    while taken:
        parts = taken.popleft()
        if (part := next(parts, None)) is not None:
            yield part
            taken.append(parts)
        else:
            taken.extend(itertools.islice(files, 1))


def _size(stored: StoredObject, number: int) -> int:
    return max(0, min(PART_BYTES, stored.size - number * PART_BYTES))


def _write_at(file: int, chunk: memoryview, at: int) -> None:
    while chunk:
        written = os.pwrite(file, chunk, at)
        chunk, at = chunk[written:], at + written


def _log_failure(name: str, state: RetryCallState) -> None:
    reason = state.outcome.exception() if state.outcome else None
    log.warning("attempt %d of %d for %s failed: %s", state.attempt_number, ATTEMPTS, name, reason)
