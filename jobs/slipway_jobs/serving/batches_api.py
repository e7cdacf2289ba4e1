"""OpenAI's Batches: `/v1/batches`."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from aiohttp import web
from sqlalchemy import Connection

from ..settings import JobsSettings
from ..store.batch_store import BatchStore, FileGone, NewBatch, Row, TooManyBatches
from ..store.database import Database
from ..store.delivery_store import TooManyWebhooks
from ..store.file_store import FileStore
from ..store.key_store import KeyAnswer
from ..store.usage import TooMuchKept
from .callbacks import CALLBACK_URL, Callbacks
from .fields import BODY_DIGEST, body_of, endpoint_of, expires_of, id_of, metadata_of, page_of, small_of, text_of
from .files_api import listing
from .idempotency import IdempotentRequests, KeyedAttempt, fingerprint_of
from .object_inputs import MAX_CHARACTERS, ObjectInputs
from .refusal import JobsRefusal, invalid, json_response, not_found
from .tenancy import tenant_of
from .upload import new_id

_FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after", CALLBACK_URL)
_TIMES = ("in_progress", "expires", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
_WINDOW = "24h"


async def make_batch(
    settings: JobsSettings,
    database: Database,
    store: BatchStore,
    new: NewBatch,
    answer: Callable[[Connection, Row], KeyAnswer],
) -> KeyAnswer:
    """Creates a batch. `answer`: called in the same transaction; makes the response.

    Raises:
        JobsRefusal: the tenant has too many batches, webhooks or results, or the input file is gone.
        LostKey: raised by `answer`; no batch was created.
    """

    def create(connection: Connection) -> KeyAnswer:
        return answer(connection, store.create(connection, new))

    with refusing(settings):
        try:
            return await database.call(create)
        except FileGone:
            raise no_such_file(new.input_file_id) from None


@contextlib.contextmanager
def refusing(settings: JobsSettings) -> Iterator[None]:
    """Turns a limit of a tenant's batches that is reached into its JobsRefusal."""
    try:
        yield
    except TooManyBatches:
        message = f"This tenant has {settings.max_tenant_batches} batches that have not ended."
        raise JobsRefusal(429, "too_many_batches", message, retry_after_s=30) from None
    except TooMuchKept:
        limit = settings.max_tenant_result_bytes
        message = f"The batches and results of this tenant have more than {limit} bytes: delete files of results."
        raise JobsRefusal(413, "storage_exhausted", message) from None
    except TooManyWebhooks:
        message = f"This tenant has {settings.max_tenant_webhooks} webhooks that are not delivered."
        raise JobsRefusal(429, "too_many_webhooks", message, param=CALLBACK_URL, retry_after_s=300) from None


class BatchesApi:
    """Answers for the batches of a tenant. `wake`: called when a batch was created or cancelled."""

    def __init__(
        self,
        settings: JobsSettings,
        database: Database,
        batch_store: BatchStore,
        file_store: FileStore,
        callbacks: Callbacks,
        keys: IdempotentRequests,
        wake: Callable[[], None],
        *,
        objects: ObjectInputs,
    ) -> None:
        self._settings, self._database, self._callbacks, self._keys = settings, database, callbacks, keys
        self._batches, self._files, self._wake, self._objects = batch_store, file_store, wake, objects

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/batches", self.create),
            web.get("/v1/batches", self.list),
            web.get("/v1/batches/{id}", self.get),
            web.post("/v1/batches/{id}/cancel", self.cancel),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        return await self._keys.run(request, self._create)

    async def _create(self, request: web.Request, attempt: KeyedAttempt) -> KeyAnswer:
        tenant, fields = tenant_of(request), await body_of(request, _FIELDS, 1 << 20)
        if recorded := attempt.replay(fingerprint_of(request, request[BODY_DIGEST])):
            return recorded
        endpoint, metadata = endpoint_of(fields), metadata_of(fields)
        if small_of(fields, "completion_window") != _WINDOW:
            raise invalid("completion_window", f"completion_window must be {_WINDOW}.")
        expires_s = expires_of(
            small_of(fields, "output_expires_after"), "output_expires_after", self._settings.retention_s
        )
        file_id = text_of(fields, "input_file_id", MAX_CHARACTERS)
        new = NewBatch(
            new_id("batch_"),
            tenant,
            endpoint,
            file_id,
            metadata=metadata,
            output_expires_s=expires_s,
            callback_url=self._callbacks.url_of(fields),
        )
        if self._objects.is_object(file_id):
            return await self._make_of_object(attempt, new)
        file = await self._database.call(self._files.get, tenant, file_id)
        if file is None or file["purpose"] != "batch":
            raise no_such_file(file_id)
        return await self._make(attempt, new)

    async def _make_of_object(self, attempt: KeyedAttempt, new: NewBatch) -> KeyAnswer:
        # Before an object of any size is read for nothing; it is decided when the batch is made.
        with refusing(self._settings):
            await self._database.call(self._batches.check_room, new.tenant)
        copied = await self._objects.copy(new.tenant, new.input_file_id)
        try:
            return await self._make(attempt, replace(new, input_file_id=copied.id))
        except BaseException:  # the client may have left; a batch that was created nevertheless keeps the file
            await self._objects.drop(copied)
            raise

    async def _make(self, attempt: KeyedAttempt, new: NewBatch) -> KeyAnswer:
        made = await make_batch(
            self._settings,
            self._database,
            self._batches,
            new,
            lambda connection, row: attempt.answer(connection, described_batch(row)),
        )
        self._wake()
        return made

    async def list(self, request: web.Request) -> web.StreamResponse:
        limit, after = page_of(request)
        rows = await self._database.call(self._batches.listed, tenant_of(request), limit, after)
        return json_response(listing([described_batch(row) for row in rows[:limit]], more=len(rows) > limit))

    async def get(self, request: web.Request) -> web.StreamResponse:
        batch_id = id_of(request)
        row = await self._database.call(self._batches.get, tenant_of(request), batch_id)
        if row is None:
            raise not_found("batch", batch_id)
        return json_response(described_batch(row) | await self._callbacks.shown(batch_id))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        batch_id = id_of(request)
        row, is_cancelled = await self._database.call(self._batches.cancel, tenant_of(request), batch_id)
        if row is None:
            raise not_found("batch", batch_id)
        if not is_cancelled:
            message = f"A batch with status {row['status']} cannot be cancelled."
            raise JobsRefusal(409, "batch_not_cancellable", message, param="id")
        self._wake()
        return json_response(described_batch(row))


def no_such_file(file_id: str) -> JobsRefusal:
    return invalid("input_file_id", f"There is no file {file_id[:100]!r} of purpose batch.", "file_not_found")


def described_batch(row: Row) -> dict[str, Any]:
    counts = row.get("counts")
    shown: dict[str, Any] = {
        "id": row["id"],
        "object": "batch",
        "endpoint": row["endpoint"],
        "errors": {"object": "list", "data": json.loads(row["errors"])} if row["errors"] else None,
        "input_file_id": row["input_file_id"],
        "completion_window": _WINDOW,
        "status": row["status"],
        "output_file_id": row["output_file_id"],
        "error_file_id": row["error_file_id"],
        "created_at": int(row["created_at"]),
        "request_counts": {
            "total": counts.total if counts else 0,
            "completed": counts.completed if counts else 0,
            "failed": counts.failed if counts else 0,
        },
        "metadata": json.loads(row["metadata"]) if row["metadata"] else None,
    }
    for name in _TIMES:
        at = row[f"{name}_at"]
        shown[f"{name}_at"] = None if at is None else int(at)
    return shown
