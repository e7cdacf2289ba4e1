"""The generation log of one gateway: which requests are in it, and with what."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from slipway_contracts.route_table import GenerationLogSample
from slipway_contracts.tenants import FULL, METADATA

from ..identity.authenticate import RequestIdentity
from ..telemetry.access_log import MAX_ID, MAX_PATH, LineQueue, clean
from ..telemetry.metrics import RequestRecord
from ..upstream.exchange import UpstreamRequest
from .capture import CaptureTerms, GenerationCapture
from .rows import NO_KEYS, NOT_ALLOWED, LoggedGeneration

_ID_DIGITS = 8  # hexadecimal digits of a request's id that choose the sample; the id is random
_MAX_ENCODING = 32

FindRule = Callable[[str], GenerationLogSample | None]


class GenerationLog:
    """It never waits: what there is no room for is dropped and counted.

    Nothing of a request is kept unless its Tenant and the owner of the deployment that answers it allow that.
    """

    def __init__(
        self,
        writer: LineQueue | None = None,
        rule_of: FindRule = lambda route: None,
        *,
        max_content_bytes: int = 0,
        hash_key: bytes = b"",
        has_keys: bool = False,
        on_omitted: Callable[[str], None] = lambda why: None,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        """`writer` None: nothing is logged. `rule_of`: what the owner of a route allows. `has_keys`: contents can be
        encrypted. `on_omitted`: gets why a prompt or a response that both allow is not in its row."""
        self._writer, self._rule_of, self._max_content_bytes = writer, rule_of, max_content_bytes
        self._hash_key, self._has_keys, self._on_omitted = hash_key, has_keys, on_omitted
        self._unix_time = unix_time
        self._encode = msgspec.msgpack.Encoder().encode

    def capture_of(self, outgoing: UpstreamRequest, record: RequestRecord) -> GenerationCapture | None:
        """What takes a request and its response; None where they are not in the log."""
        if self._writer is None or not (outgoing.writes_text and outgoing.computes):
            return None
        identity, rule = record.identity, self._rule_of(outgoing.route)
        if identity is None or rule is None or not allowed_by(identity) or not _is_in_sample(rule, record):
            return None
        why = NO_KEYS if not self._has_keys else ""
        if not (rule.contents and allowed_by(identity) == FULL):
            why = NOT_ALLOWED
        terms = CaptureTerms(self._hash_key, self._max_content_bytes, why)
        about = {"route": outgoing.route, "tenant": identity.name, "path": outgoing.path}
        return GenerationCapture(outgoing.body, outgoing.account, terms, **about)

    def ended(self, record: RequestRecord, now_s: float) -> None:
        """Queues the row of a request that ended, if it has a capture. `now_s`: on the clock of the record."""
        capture = record.generation
        if capture is None or self._writer is None or capture.status != 200:
            return
        answers = record.answered_by or capture.route
        if answers != capture.route and not self._allows_too(answers, capture):
            return
        for why in (capture.input_omitted, capture.output_omitted):
            if why and why != NOT_ALLOWED:
                self._on_omitted(why)
        self._writer.put(record.owner, self._encode(self._row(record, capture, answers, now_s)))

    def _allows_too(self, route: str, capture: GenerationCapture) -> bool:
        """Whether the owner of a deployment that answered in place of the chosen one allows as much."""
        rule = self._rule_of(route)
        return rule is not None and bool(rule.contents or capture.output_omitted == NOT_ALLOWED)

    def _row(self, record: RequestRecord, capture: GenerationCapture, route: str, now_s: float) -> LoggedGeneration:
        usage = record.find_usage()
        tokens = usage[0] if usage else None
        row = LoggedGeneration(
            record.id,
            datetime.fromtimestamp(self._unix_time(), UTC).isoformat(timespec="milliseconds"),
            capture.tenant,
            route,
            record.revision,
            clean(record.request_id, MAX_ID),
            clean(capture.path, MAX_PATH),
            record.code,
            record.outcome,
            round(now_s - record.started, 6),
            record.stream,
            tokens.input_tokens if tokens else None,
            tokens.output_tokens if tokens else None,
            capture.input_bytes,
            capture.output_bytes,
            *capture.hashes,
            clean(capture.encoding, _MAX_ENCODING),
        )
        row.input, row.output = capture.input, capture.output
        row.input_omitted, row.output_omitted = capture.input_omitted or None, capture.output_omitted or None
        return row

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer.close()


def allowed_by(identity: RequestIdentity) -> str:
    """What the Tenant of a request allows to be kept: METADATA, FULL or nothing."""
    level = identity.tenant.generation_log
    return level if level in (METADATA, FULL) else ""


def _is_in_sample(rule: GenerationLogSample, record: RequestRecord) -> bool:
    return int(record.id[:_ID_DIGITS], 16) * 100 < rule.percentage << 4 * _ID_DIGITS
