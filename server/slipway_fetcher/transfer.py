"""Gets files by HTTP: guarded, continued where they broke off, tried a few times, and never longer than allowed."""

import http.client
import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from . import folder, guard
from .checksums import known
from .checksums.growing import GrowingDigest, GrowingFile
from .checksums.known import KNOWN
from .downloads import FETCH, DownloadProgress
from .folder import CHUNK_BYTES, FetchError, UnusableError

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

ATTEMPTS, BACKOFF_S, TIMEOUT_S = 5, 0.5, 30.0
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
PARALLEL = 4  # files at a time


@dataclass(frozen=True, slots=True)
class Listed:
    """A file that a list names."""

    url: str
    size: int
    sha256: str | None = None
    blob: str | None = None  # its id in git, where the list has no sha256


class AnsweredError(FetchError):
    """The server answered with an error status that another try does not change."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class Transfer:
    """Requests by the rules of the guard; `headers` go to the origin of `url` alone."""

    def __init__(
        self,
        rules: guard.EgressRules,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        renew: Callable[[str], Mapping[str, str]] | None = None,
        written: bool = True,
    ) -> None:
        """`url`: from the user, unless `written` is false. `renew` makes new headers from the challenge of a 401.

        Raises:
            RefusedError: for a URL that the fetcher does not go to.
        """
        rules = rules.with_written(url) if written else rules
        self._renew = renew
        parts = guard.check_url(rules, url, insecure=url.startswith("http://"))
        self._insecure = parts.scheme == "http"
        self._rules, self._opener = rules, guard.opener(rules)
        self._origin, self._headers = (parts.scheme, parts.netloc), dict(headers or {})

    def read(self, url: str, limit_bytes: int) -> bytes:
        """The body of a short answer; UnusableError above `limit_bytes`."""
        return _tried(url, lambda: self._whole(url, limit_bytes))

    def get(self, url: str, path: Path, max_bytes: int, progress: DownloadProgress | None = None) -> None:
        """Download a file to `path`; a partial file is continued.

        Raises:
            FetchError: when the file cannot be fetched, or the disk is full.
            UnusableError: when the file is longer than `max_bytes`.
        """
        state = _Partial(path)
        _tried(url, lambda: self._append(url, state, max_bytes, progress), state)

    def get_all(self, files: Mapping[str, Listed], target: Path, source: str) -> None:
        """Download listed files to a folder, a few at a time, and compare them with the list."""
        for name in files:
            folder.inside(target, name)  # bounds the length of each name for what follows
        folder.check_names(files, source)
        total = sum(file.size for file in files.values())
        folder.check_room(target, total - sum(path.stat().st_size for path in target.rglob("*") if path.is_file()))
        progress = DownloadProgress("fetched", total, meter=FETCH)
        with ThreadPoolExecutor(PARALLEL) as pool:
            jobs = [pool.submit(self._get_listed, target, name, files[name], progress, source) for name in files]
            try:
                for job in jobs:
                    job.result()
            finally:
                for job in jobs:
                    job.cancel()
        progress.log_rate()

    def _get_listed(self, target: Path, name: str, file: Listed, progress: DownloadProgress, source: str) -> None:
        path = folder.inside(target, name)
        with folder.writing(target):
            path.parent.mkdir(parents=True, exist_ok=True)
        difference = _differs(path, file)
        if not difference:
            progress.correct(file.size)
        else:
            continued = path.exists()
            self.get(file.url, path, file.size, progress)
            difference = _differs(path, file)
            if difference and continued:
                # What was there may be the beginning of an earlier upload.
                progress.correct(-path.stat().st_size)
                path.unlink(missing_ok=True)
                self.get(file.url, path, file.size, progress)
                difference = _differs(path, file)
        if difference:
            path.unlink(missing_ok=True)
            raise UnusableError(f"{name} of {source} does not have the size and checksum of its list: {difference}.")
        if file.sha256:
            KNOWN.note(path, file.sha256)  # of a file that an earlier run left, too

    def _whole(self, url: str, limit_bytes: int) -> bytes:
        with closing(self._open(url, {})) as answer:
            body = answer.read(limit_bytes + 1)
        folder.check_size(len(body), limit_bytes, guard.shown(url))
        return body

    def _append(self, url: str, state: "_Partial", max_bytes: int, progress: DownloadProgress | None) -> None:
        with closing(self._open(url, state.range_headers())) as answer:
            size = state.begin(answer)
            length = answer.headers.get("Content-Length")
            expected = size + int(length) if length and length.isdecimal() else None
            folder.check_size(expected or 0, max_bytes, guard.shown(url))
            if progress:
                progress.learn(expected)
                progress.correct(size - state.counted)
            state.counted = size
            with state.file(size) as file:
                buffer = memoryview(bytearray(CHUNK_BYTES))
                while count := answer.readinto(buffer):
                    size += count
                    folder.check_size(size, max_bytes, guard.shown(url))
                    file.write(buffer[:count])
                    state.counted = size
                    if progress:
                        progress.add(count)
        if expected is not None and size < expected:
            raise http.client.IncompleteRead(b"", expected - size)
        state.digest.note()

    def _open(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        parts = guard.check_url(self._rules, url, insecure=self._insecure)
        trusted = (parts.scheme, parts.netloc) == self._origin
        try:
            return self._requested(url, headers, self._headers if trusted else {})
        except urllib.error.HTTPError as error:
            # Only a 401 of the origin itself counts: a host that it redirects to gets no credentials.
            if error.code != 401 or not trusted or self._renew is None or error.url != url:
                raise
            challenge = error.headers.get("WWW-Authenticate") or ""
            error.close()
        self._headers = dict(self._renew(challenge))
        return self._requested(url, headers, self._headers)

    def _requested(self, url: str, headers: Mapping[str, str], own: Mapping[str, str]) -> http.client.HTTPResponse:
        request = urllib.request.Request(url, headers=dict(headers))
        for name, value in own.items():
            request.add_unredirected_header(name, value)
        answer: http.client.HTTPResponse = self._opener.open(request, timeout=TIMEOUT_S)
        return answer


class _Partial:
    """A partial file, and the request for its rest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counted = 0  # bytes of the file that the progress counts
        self.digest = GrowingDigest(path)
        self._version: str | None = None  # of the file that this process has begun to download

    def range_headers(self) -> dict[str, str]:
        have = self.path.stat().st_size if self.path.exists() else 0
        if not have:
            return {}
        self.digest.keep(have)  # before the request, during which the server would wait for the digest
        same = {"If-Range": self._version} if self._version else {}
        return {"Range": f"bytes={have}-", **same}

    def begin(self, answer: http.client.HTTPResponse) -> int:
        """Bytes of the partial file to keep: none unless the response begins where they end."""
        have = self.path.stat().st_size if self.path.exists() else 0
        begins = (answer.headers.get("Content-Range") or f"bytes {have}-").removeprefix("bytes ").partition("-")[0]
        tag = answer.headers.get("ETag") or ""
        self._version = tag if tag.startswith('"') else None
        if answer.status == 206 and begins != str(have):
            self.drop()
            raise http.client.HTTPException(f"requested the rest after byte {have}, got a response from byte {begins}")
        return have if answer.status == 206 else 0

    def file(self, size: int) -> GrowingFile:
        return GrowingFile(self.path, size, self.digest)

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)


class _PassingError(Exception):
    """Another try may succeed; the message describes the failure."""


def _tried(url: str, attempt: Callable[[], Answer], state: _Partial | None = None) -> Answer:
    """Try a few times when the server or the line fails.

    Raises:
        FetchError: when every try failed, or another try cannot help.
    """
    source = guard.shown(url)
    retrying = Retrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=BACKOFF_S),
        retry=retry_if_exception_type(_PassingError),
        before_sleep=partial(_log_failure, source),
        reraise=True,
    )
    try:
        answer: Answer = retrying(_once, source, attempt, state)
        return answer
    except _PassingError as error:
        raise FetchError(f"{source} failed {ATTEMPTS} times, last: {error}.") from None


def _once(source: str, attempt: Callable[[], Answer], state: _Partial | None) -> Answer:
    try:
        return attempt()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and state:  # the partial file is not the beginning of the server's file
            state.drop()
        elif error.code not in TRANSIENT:
            raise AnsweredError(f"{source} answered {_status(error.code)}.", error.code) from None
        reason = _status(error.code)
    except http.client.BadStatusLine as error:
        reason = f"{type(error).__name__}: no answer of HTTP"  # its text is what the server wrote
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = str(error)
    # Raised outside of the handlers: the error is kept while the next try waits, and must not keep the connection.
    raise _PassingError(reason)


def _log_failure(source: str, state: RetryCallState) -> None:
    reason = state.outcome.exception() if state.outcome else None
    log.warning("attempt %d of %d for %s failed: %s", state.attempt_number, ATTEMPTS, source, reason)


def _status(code: int) -> str:
    """The status code with its standard phrase: a server's own text is not passed on."""
    return f"{code} {http.client.responses.get(code, '')}".strip()


def _differs(path: Path, file: Listed) -> str:
    """How a file differs from the list; empty when it does not."""
    size = path.stat().st_size if path.is_file() else 0
    if size != file.size or not path.is_file():
        return f"it has {size} bytes, the list says {file.size}"
    if file.sha256 and (found := known.sha256_of(path)) != file.sha256:
        return f"it has sha256:{found}, the list says sha256:{file.sha256}"
    if file.blob and (found := known.blob_of(path)) != file.blob:
        return f"it is blob {found} of git, the list says {file.blob}"
    return ""
