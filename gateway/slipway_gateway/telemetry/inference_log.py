"""The inference log: what classic models were given, what they predicted, and what clients learned about it later."""

import base64
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec

from slipway_contracts.route_table import InferenceLogSample
from slipway_contracts.tenants import ALL, INFERENCE_LOG

from ..identity.authenticate import RequestIdentity
from ..wire.predictions import Value, read_predictions
from .access_log import MAX_ID, MAX_PATH, LineQueue, clean
from .metrics import RequestRecord

_ID_DIGITS = 8  # hexadecimal digits of a request's id that choose the sample; the id is random
_MAX_PREDICTIONS, _MAX_LABEL = 64, 256  # values of a row of the log, and characters of one


class LoggedInference(msgspec.Struct, tag="inference"):
    """A request that got its whole response. Contents are None where they may not be logged, or are too long."""

    id: str
    at: str
    route: str
    revision: str
    tenant: str
    request_id: str
    feedback_id: str
    path: str
    status: int
    seconds: float
    rows: int | None  # of the response; None where its predictions cannot be read, or may not be logged
    predictions: str | None  # a list in JSON
    input_bytes: int
    output_bytes: int
    input: str | None = None
    output: str | None = None
    input_base64: bool = False
    output_base64: bool = False


class LoggedFeedback(msgspec.Struct, tag="feedback"):
    """What a client learned about the response whose token has this id."""

    feedback_id: str
    at: str
    correct: bool | None
    score: float | None
    label: str | None


class Exchanged(msgspec.Struct):
    """A request and its whole response. `output` None: only its length is known."""

    route: str
    path: str
    headers: Mapping[str, str]  # of the response
    input: bytes
    output: bytes | None
    feedback_id: str


class InferenceLog:
    """The log of one gateway. It never waits: what there is no room for is dropped and counted."""

    def __init__(
        self,
        writer: LineQueue | None = None,
        max_content_bytes: int = 0,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        """`writer` None: nothing is logged."""
        self._writer, self._max_content_bytes, self._unix_time = writer, max_content_bytes, unix_time
        self._encode = msgspec.json.Encoder().encode

    @property
    def is_on(self) -> bool:
        """Whether there is a database to log to."""
        return self._writer is not None

    def takes(self, rule: InferenceLogSample, record: RequestRecord) -> bool:
        """Whether a request is in the sample."""
        return int(record.id[:_ID_DIGITS], 16) * 100 < rule.percentage << 4 * _ID_DIGITS

    def inferred(self, found: Exchanged, rule: InferenceLogSample, record: RequestRecord, seconds: float) -> None:
        """Queue the row of a request that `takes` has chosen."""
        if self._writer is None:
            return
        identity = record.identity
        captures = may_capture(identity)
        has_output = captures and found.output is not None
        read = read_predictions(found.path, found.headers, found.output or b"") if has_output else None
        row = LoggedInference(
            record.id,
            self._now(),
            found.route,
            record.revision,
            identity.name if identity else "",
            clean(record.request_id, MAX_ID),
            found.feedback_id,
            clean(found.path, MAX_PATH),
            record.code,
            round(seconds, 6),
            read.count if read else None,
            _json([row.value if row else None for row in read.rows[:_MAX_PREDICTIONS]]) if read else None,
            len(found.input),
            record.sent_bytes,
        )
        if rule.contents and captures:
            row.input, row.input_base64 = self._content(found.input)
            row.output, row.output_base64 = self._content(found.output)
        self._writer.put(record.owner, self._encode(row))

    def rated(
        self, owner: str, feedback_id: str, correct: bool | None, score: float | None, label: Value | None
    ) -> None:
        """Queue what a client learned about a response. `owner`: whose share of the queue it takes."""
        if self._writer is None:
            return
        text = None if label is None else _without_nul(str(label))
        self._writer.put(owner, self._encode(LoggedFeedback(feedback_id, self._now(), correct, score, text)))

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer.close()

    def _now(self) -> str:
        return datetime.fromtimestamp(self._unix_time(), UTC).isoformat(timespec="milliseconds")

    def _content(self, data: bytes | None) -> tuple[str | None, bool]:
        """The content as text, and whether it is in base64; None where it is longer than a row may have."""
        if data is None or len(data) > self._max_content_bytes:
            return None, False
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = "\0"
        return (base64.b64encode(data).decode(), True) if "\0" in text else (text, False)


def may_capture(identity: RequestIdentity | None) -> bool:
    """Whether contents of the request may be logged, predictions too.

    Without a tenant the ModelDeployment alone decides.
    """
    return identity is None or identity.tenant.content_capture in (INFERENCE_LOG, ALL)


def _json(values: list[Value | None]) -> str:
    """NaN and infinity become null, as in the responses; long labels are cut."""
    return msgspec.json.encode([one[:_MAX_LABEL] if isinstance(one, str) else one for one in values]).decode()


def _without_nul(text: str) -> str:
    """PostgreSQL has no texts with NUL."""
    return text.replace("\0", "?")
