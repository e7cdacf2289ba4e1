"""Thin adapters over batches: `/v1/jobs` is a batch of one request, `/api/v1/batch` one of inputs in its body."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web

from ..input_line import MAX_CUSTOM_ID, InvalidLine, read_line
from ..pace import TimedLines, remaining_seconds
from ..settings import JobsSettings
from ..states import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    ENDED_BATCHES,
    EXPIRED,
    FAILED,
    FINALIZING,
    IN_PROGRESS,
    INPUTS,
    JOB,
    UNRUN,
    VALIDATING,
)
from ..store.batch_store import BatchStore, NewBatch, Row
from ..store.database import Database
from ..store.file_store import INTERNAL, NewFile
from ..store.key_store import KeyAnswer
from ..turns import let_others_run
from .batches_api import make_batch
from .callbacks import CALLBACK_URL, Callbacks
from .fields import BODY_DIGEST, Fields, body_of, endpoint_of, id_of, list_of, text_of
from .idempotency import IdempotentRequests, KeyedAttempt, fingerprint_of
from .refusal import JobsRefusal, invalid, json_response, not_found
from .tenancy import tenant_of
from .upload import Uploads, new_id

_PREDICT = "/api/v1/predict"
_STATUSES = {
    VALIDATING: "queued",
    IN_PROGRESS: "running",
    FINALIZING: "running",
    CANCELLING: "cancelling",
    COMPLETED: "completed",
    FAILED: "failed",
    EXPIRED: "expired",
    CANCELLED: "cancelled",
}


class JobsApi:
    """Answers for the jobs of a tenant. `wake`: called when a job was created or cancelled."""

    def __init__(
        self,
        settings: JobsSettings,
        database: Database,
        store: BatchStore,
        uploads: Uploads,
        callbacks: Callbacks,
        keys: IdempotentRequests,
        wake: Callable[[], None],
    ) -> None:
        self._settings, self._database, self._store = settings, database, store
        self._uploads, self._callbacks, self._keys, self._wake = uploads, callbacks, keys, wake

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/jobs", self.create_job),
            web.get("/v1/jobs/{id}", self.get_job),
            web.delete("/v1/jobs/{id}", self.cancel_job),
            web.post("/api/v1/batch", self.create_inputs),
            web.get("/api/v1/batch/{id}", self.get_inputs),
        ]

    async def create_job(self, request: web.Request) -> web.StreamResponse:
        return await self._keys.run(request, self._create_job)

    async def _create_job(self, request: web.Request, attempt: KeyedAttempt) -> KeyAnswer:
        fields = await body_of(request, ("endpoint", "body", CALLBACK_URL), self._settings.max_line_bytes)
        if recorded := attempt.replay(fingerprint_of(request, request[BODY_DIGEST])):
            return recorded
        endpoint = endpoint_of(fields)
        line = _line("job", endpoint, fields.get("body"))
        await let_others_run(line)
        try:
            read_line(line, endpoint)
        except InvalidLine as error:
            raise invalid(error.param or "body", str(error), error.code) from None
        new = self._new(request, fields, JOB, endpoint)
        return await self._make(attempt, new, iter([line]), {"job_id": new.id, "status": "queued"})

    async def get_job(self, request: web.Request) -> web.StreamResponse:
        row = await self._find(request, JOB)
        return json_response(await self._job(row) | await self._callbacks.shown(row["id"]))

    async def cancel_job(self, request: web.Request) -> web.StreamResponse:
        job_id = id_of(request)
        row, is_cancelled = await self._database.call(self._store.cancel, tenant_of(request), job_id, JOB)
        if row is None:
            raise not_found(JOB, job_id)
        if not is_cancelled:
            raise JobsRefusal(409, "job_not_cancellable", "This job has ended.", param="id")
        self._wake()
        return json_response(await self._job(row))

    async def create_inputs(self, request: web.Request) -> web.StreamResponse:
        return await self._keys.run(request, self._create_inputs)

    async def _create_inputs(self, request: web.Request, attempt: KeyedAttempt) -> KeyAnswer:
        fields = await body_of(request, ("model", "inputs", CALLBACK_URL))
        if recorded := attempt.replay(fingerprint_of(request, request[BODY_DIGEST])):
            return recorded
        model = text_of(fields, "model", MAX_CUSTOM_ID)
        inputs = await list_of(fields, "inputs", self._settings.max_lines)
        lines = (_line(f"input-{n}", _PREDICT, {"model": model, "input": one}) for n, one in enumerate(inputs))
        new = self._new(request, fields, INPUTS, _PREDICT)
        pace = await self._database.call(self._store.pace, new.tenant, _PREDICT)
        shown: dict[str, Any] = {"batch_id": new.id, "status": "queued"} | _estimated(
            pace.estimated_seconds(len(inputs))
        )
        return await self._make(attempt, new, lines, shown)

    async def get_inputs(self, request: web.Request) -> web.StreamResponse:
        row = await self._find(request, INPUTS)
        counts = row["counts"]
        links = {
            name: f"/v1/files/{file_id}/content" if (file_id := row[f"{part}_file_id"]) else None
            for name, part in (("results_url", "output"), ("errors_url", "error"))
        }
        shown = {"batch_id": row["id"], "status": _STATUSES[row["status"]], **links}
        shown |= await self._callbacks.shown(row["id"]) | _estimated(await self._remaining_seconds(row))
        return json_response(shown | {"total": counts.total, "completed": counts.completed, "failed": counts.failed})

    async def _remaining_seconds(self, row: Row) -> float | None:
        """Until a batch ends; None where nothing is known of it."""
        if row["status"] in ENDED_BATCHES:
            return 0.0
        if row["in_progress_at"] is None:
            return None
        now_s = await self._database.call(self._database.time)
        counts = row["counts"]
        running = TimedLines(counts.total, now_s - row["in_progress_at"])
        return remaining_seconds(running, counts.completed + counts.failed)

    def _new(self, request: web.Request, fields: Fields, kind: str, endpoint: str) -> NewBatch:
        made, url = new_id(f"{kind}_"), self._callbacks.url_of(fields)
        return NewBatch(made, tenant_of(request), endpoint, new_id("file-"), kind, callback_url=url)

    async def _make(self, attempt: KeyedAttempt, new: NewBatch, lines: Iterator[bytes], shown: object) -> KeyAnswer:
        file = NewFile(new.input_file_id, new.tenant, self._settings.retention_s, INTERNAL)
        await self._uploads.write(file, lines, "body" if new.kind == JOB else "inputs")
        try:
            made = await make_batch(
                self._settings,
                self._database,
                self._store,
                new,
                lambda connection, _: attempt.answer(connection, shown, 202),
            )
        except BaseException:  # the client may have left; a batch that was created nevertheless keeps the file
            await self._uploads.drop(file)
            raise
        self._wake()
        return made

    async def _find(self, request: web.Request, kind: str) -> Row:
        found = id_of(request)
        row = await self._database.call(self._store.get, tenant_of(request), found, kind)
        if row is None:
            raise not_found("batch" if kind == INPUTS else kind, found)
        return row

    async def _job(self, row: Row) -> dict[str, Any]:
        """A job as clients see it: `result` is the body of the response; a request that failed has `error`."""
        status = _STATUSES[row["status"]]
        shown = {
            "job_id": row["id"],
            "status": status,
            "endpoint": row["endpoint"],
            "created_at": int(row["created_at"]),
        }
        line = await self._database.call(self._store.result, row["id"]) if row["output_file_id"] else None
        failed = None if line else await self._database.call(self._store.result, row["id"])
        found = _RESULT.decode(line or failed or b"{}")
        response = found.response or _Response()
        error: dict[str, str] | msgspec.Raw | None = found.error
        if row["status"] == COMPLETED and not row["output_file_id"]:
            shown["status"] = "failed"
        if failed and found.response:
            error = _error_of(response.body)
        if row["status"] == COMPLETED and not (line or failed):
            error = {"code": "result_deleted", "message": "The file with the result of this job was deleted."}
        if error is None and row["status"] in UNRUN:  # the job ended before its file was read
            error = dict(zip(("code", "message"), UNRUN[row["status"]], strict=True))
        shown["result"] = response.body if line else None
        shown["status_code"], shown["revision"] = response.status_code, response.revision
        return shown | {"error": error}


class _Response(msgspec.Struct):
    """The response in a line of a result. A model wrote `body`."""

    status_code: int | None = None
    revision: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Result(msgspec.Struct):
    """What is shown of a line of a result."""

    response: _Response | None = None
    error: dict[str, str] | None = None


class _ErrorBody(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw()


_RESULT, _ERROR_BODY = msgspec.json.Decoder(_Result), msgspec.json.Decoder(_ErrorBody)


def _estimated(seconds: float | None) -> dict[str, Any]:
    """Under both names that clients look for."""
    return {"estimated_seconds": seconds, "estimated_time": seconds}


def _error_of(body: msgspec.Raw) -> msgspec.Raw:
    """The `error` in the body of a response that is none of success, or the whole body."""
    with suppress(msgspec.ValidationError):
        if bytes(error := _ERROR_BODY.decode(body).error):
            return error
    return body


def _line(custom_id: str, endpoint: str, body: Any) -> bytes:
    return msgspec.json.encode({"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}) + b"\n"
