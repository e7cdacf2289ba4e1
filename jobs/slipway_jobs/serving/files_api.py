"""OpenAI's Files: `/v1/files`."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http_exceptions import BadHttpMessage

from ..settings import JobsSettings
from ..store.database import Database
from ..store.file_store import UPLOAD_S, FileStore, NewFile, Row
from ..store.key_store import KeyAnswer, LostKey
from ..telemetry import JobsMetrics
from .fields import expires_of, id_of, is_storable, page_of
from .idempotency import IdempotentRequests, KeyedAttempt, fingerprint_of
from .refusal import JobsRefusal, invalid, json_response, not_found
from .tenancy import tenant_of
from .upload import Uploads, file_too_large, new_id, upload_too_slow

_MAX_PARTS = 16
_MAX_FIELD_BYTES = 1024
_CHUNK_BYTES = 64 << 10
_SKIP_S = 60.0  # for the rest of a file that is refused
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")


class FilesApi:
    """Answers for the files of a tenant."""

    def __init__(
        self,
        settings: JobsSettings,
        database: Database,
        store: FileStore,
        uploads: Uploads,
        keys: IdempotentRequests,
        metrics: JobsMetrics,
    ) -> None:
        self._settings, self._database, self._store = settings, database, store
        self._uploads, self._keys, self._metrics = uploads, keys, metrics
        metrics.uploads.set_function(uploads.receiving.taken.total)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/files", self.create),
            web.get("/v1/files", self.list),
            web.get("/v1/files/{id}", self.get),
            web.delete("/v1/files/{id}", self.delete),
            web.get("/v1/files/{id}/content", self.content),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        with self._uploads.place(tenant_of(request)):
            try:
                return await self._keys.run(request, self._create)
            except JobsRefusal:
                # A client that still sends would not read the response.
                await self._skip(request)
                raise

    async def _create(self, request: web.Request, attempt: KeyedAttempt) -> KeyAnswer:
        if request.content_type != "multipart/form-data" or "boundary" not in request.headers["Content-Type"]:
            raise JobsRefusal(415, "unsupported_media_type", "Send the file as multipart/form-data.")
        form = _Form(self._settings, tenant_of(request), self._uploads if attempt.recorded is None else None)
        try:
            async with asyncio.timeout(UPLOAD_S):
                await form.read(await request.multipart())
            form.check()
            if recorded := attempt.replay(fingerprint_of(request, form.digest())):
                return recorded
        # BadHttpMessage: a part's head is malformed, or larger than aiohttp takes.
        except (ValueError, AssertionError, EOFError, BadHttpMessage):
            await form.drop()
            message = "The body is no valid multipart/form-data, or the head of a part is too long."
            raise JobsRefusal(400, "invalid_form", message, param="file") from None
        except TimeoutError:
            await form.drop()
            raise upload_too_slow() from None
        except BaseException:
            await form.drop()
            raise
        return await form.finish(attempt)

    async def _skip(self, request: web.Request) -> None:
        left = 2 * self._settings.max_file_bytes
        with contextlib.suppress(Exception):  # the client may have left, or takes too long
            async with asyncio.timeout(_SKIP_S):
                while left > 0 and (chunk := await request.content.readany()):
                    left -= len(chunk)

    async def list(self, request: web.Request) -> web.StreamResponse:
        limit, after = page_of(request, default=100)
        order, purpose = request.query.get("order", "desc"), request.query.get("purpose", "")
        if order not in ("asc", "desc"):
            raise invalid("order", "order must be asc or desc.")
        if not is_storable(purpose):
            raise invalid("purpose", "purpose must be batch or batch_output.")
        rows = await self._database.call(
            self._store.listed, tenant_of(request), limit, after, purpose=purpose, ascends=order == "asc"
        )
        return json_response(listing([described_file(row) for row in rows[:limit]], more=len(rows) > limit))

    async def get(self, request: web.Request) -> web.StreamResponse:
        return json_response(described_file(await self._find(request)))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        file_id = id_of(request)
        if not await self._database.call(self._store.delete, tenant_of(request), file_id):
            raise not_found("file", file_id)
        return json_response({"id": file_id, "object": "file", "deleted": True})

    async def content(self, request: web.Request) -> web.StreamResponse:
        file = await self._find(request)
        response = web.StreamResponse()
        response.content_type, response.content_length = "application/octet-stream", file["bytes"]
        # Before the head: a file whose key is lost is an error, and no connection that breaks off.
        rows = [] if request.method == "HEAD" else await self._database.call(self._store.page, file, -1)
        await response.prepare(request)
        while rows:
            await response.write(b"".join(data for _, data in rows))
            rows = await self._database.call(self._store.page, file, rows[-1][0])
        await response.write_eof()
        return response

    async def _find(self, request: web.Request) -> Row:
        file_id = id_of(request)
        row = await self._database.call(self._store.get, tenant_of(request), file_id)
        if row is None:
            raise not_found("file", file_id)
        return row


class _Form:
    """The parts of one upload, in any order; the file is written to the database while it arrives.

    `uploads`: None where an earlier request with the same key has uploaded it; then only the digest is computed.
    """

    def __init__(self, settings: JobsSettings, tenant: str, uploads: Uploads | None) -> None:
        self._settings, self._uploads, self._sum = settings, uploads, hashlib.sha256()
        self._new = NewFile(new_id("file-"), tenant, settings.retention_s)
        self._fields: dict[str, str] = {}
        self._received = False

    async def read(self, parts: MultipartReader) -> None:
        for _ in range(_MAX_PARTS):
            part = await parts.next()
            if part is None:
                return
            if not isinstance(part, BodyPartReader):
                raise ValueError("a part has parts")
            if part.name == "file" and not self._received:
                await self._receive(part)
            else:
                await self._field(part)
        raise invalid("file", f"The form has more than {_MAX_PARTS} parts.")

    async def _receive(self, part: BodyPartReader) -> None:
        name = part.filename or ""
        if len(name) > 512 or not is_storable(name):
            raise invalid("file", "The name of the file has at most 512 characters.")
        self._new = replace(self._new, filename=name)
        self._received = True
        if self._uploads:
            await self._uploads.receive(self._new, self._chunks(part))
            return
        total = 0
        async for chunk in self._chunks(part):
            total += len(chunk)
            if total > self._settings.max_file_bytes:
                raise file_too_large(self._settings.max_file_bytes)

    async def _chunks(self, part: BodyPartReader) -> AsyncIterator[bytes]:
        while chunk := await part.read_chunk(_CHUNK_BYTES):
            self._sum.update(chunk)
            yield bytes(chunk)

    async def _field(self, part: BodyPartReader) -> None:
        name = part.name or ""
        if name not in _FIELDS or name in self._fields:
            raise invalid(name[:100], f"The field {name[:100]!r} is unknown or there twice.", "unknown_field")
        data = bytearray()
        while chunk := await part.read_chunk(_MAX_FIELD_BYTES):
            data += chunk
            if len(data) > _MAX_FIELD_BYTES:
                raise invalid(name, f"{name} has more than {_MAX_FIELD_BYTES} bytes.")
        self._fields[name] = bytes(data).decode()

    def digest(self) -> bytes:
        """SHA-256 of file and fields, without the form's boundary, which differs when a client sends them again."""
        parts = [self._new.filename, self._sum.hexdigest(), sorted(self._fields.items())]
        return hashlib.sha256(msgspec.json.encode(parts)).digest()

    async def finish(self, attempt: KeyedAttempt) -> KeyAnswer:
        assert self._uploads
        try:
            return await self._uploads.finish(
                self._new, lambda connection, row: attempt.answer(connection, described_file(row))
            )
        except LostKey:
            await self.drop()
            raise

    def check(self) -> None:
        """
        Raises:
            JobsRefusal: something is missing or wrong.
        """
        if not self._received:
            raise invalid("file", "file is missing.", "missing_field")
        if self._fields.get("purpose") != "batch":
            raise invalid("purpose", "purpose must be batch.")
        given: Any = None
        if "expires_after[anchor]" in self._fields or "expires_after[seconds]" in self._fields:
            seconds = self._fields.get("expires_after[seconds]", "")
            number = int(seconds) if seconds.isascii() and seconds.isdigit() and len(seconds) < 9 else None
            given = {"anchor": self._fields.get("expires_after[anchor]"), "seconds": number}
        keep_s = expires_of(given, "expires_after", self._settings.retention_s)
        self._new = replace(self._new, keep_s=self._settings.retention_s if keep_s is None else keep_s)

    async def drop(self) -> None:
        if self._received and self._uploads:
            await self._uploads.drop(self._new)


def described_file(row: Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "object": "file",
        "bytes": row["bytes"],
        "created_at": int(row["created_at"]),
        "expires_at": int(row["expires_at"]),
        "filename": row["filename"],
        "purpose": row["purpose"],
        "status": "processed",
    }


def listing(data: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, "has_more": more} | ends
