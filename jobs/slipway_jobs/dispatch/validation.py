"""Reads the input file of a batch: each line is valid and each custom_id occurs once, or the whole batch fails."""

import hashlib
from collections.abc import Sequence
from typing import Any

from slipway_process.sealing import UnreadableSeal

from ..input_line import InvalidLine, read_line
from ..settings import JobsSettings
from ..states import UNREADABLE_LINE
from ..store.batch_store import BatchStore, Validation
from ..store.database import Database
from ..store.file_store import FileStore
from ..store.usage import TooMuchKept

MAX_ERRORS = 50  # that are shown
_MAX_READS = 10  # of one file, if processes end while they validate it


class BatchReader:
    """Reads the lines of one batch. `errors`: those found so far; `total`: requests so far."""

    def __init__(self, endpoint: str, max_lines: int) -> None:
        self._endpoint, self._max_lines = endpoint, max_lines
        self._seen: set[bytes] = set()
        self.errors: list[dict[str, Any]] = []
        self.total = 0

    @property
    def is_over(self) -> bool:
        """Whether there are as many errors as are shown, so that the rest of the file is not read."""
        return len(self.errors) >= MAX_ERRORS

    def read(self, rows: Sequence[tuple[int, bytes]]) -> list[tuple[int, str]]:
        """Numbers and custom_ids of the valid lines. The others go to `errors`, with line numbers from 1 on."""
        found = []
        for n, data in rows:
            if not data.strip():
                continue
            try:
                found.append((n, self._one(data)))
            except InvalidLine as error:
                self.errors.append({"code": error.code, "line": n + 1, "message": str(error), "param": error.param})
                if self.is_over:
                    break
        return found

    def end(self) -> None:
        if not self.total and not self.errors:
            message = "The file has no request."
            self.errors.append({"code": "empty_file", "line": None, "message": message, "param": "input_file_id"})

    def give_up(self) -> None:
        message = (
            f"The file could not be validated {_MAX_READS} times: each time the process ended or lost its database."
        )
        self.errors.append({"code": "validation_failed", "line": None, "message": message, "param": "input_file_id"})

    def is_unreadable(self, error: UnreadableSeal) -> None:
        message = f"The file cannot be decrypted: {error}."
        self.errors.append({"code": UNREADABLE_LINE, "line": None, "message": message, "param": "input_file_id"})

    def has_no_room(self) -> None:
        message = "The batches and results of this tenant are at their limit: delete files of results."
        self.errors.append({"code": "storage_exhausted", "line": None, "message": message, "param": None})

    def _one(self, data: bytes) -> str:
        self.total += 1
        if self.total > self._max_lines:
            raise InvalidLine("too_many_requests", f"A batch has at most {self._max_lines} requests.")
        custom_id = read_line(data, self._endpoint).custom_id
        digest = hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
        if digest in self._seen:
            raise InvalidLine("duplicate_custom_id", f"custom_id {custom_id[:100]!r} occurs twice.", "custom_id")
        self._seen.add(digest)
        return custom_id


class Validator:
    """Validates the batches of all tenants, one after the other; tenants take turns."""

    def __init__(
        self, settings: JobsSettings, database: Database, file_store: FileStore, batch_store: BatchStore, owner: str
    ) -> None:
        self._settings, self._database = settings, database
        self._files, self._batches = file_store, batch_store
        self._owner, self._last_tenant = owner, ""

    async def next(self) -> bool:
        """Validates the next batch; False when none waits. Raises the errors in `UNAVAILABLE`."""
        lease_s = self._settings.lease_s
        validation = await self._database.call(self._batches.claim, self._owner, lease_s, self._last_tenant)
        if validation is None:
            return False
        batch = validation.batch
        self._last_tenant = batch["tenant"]
        reader = BatchReader(batch["endpoint"], self._settings.max_lines)
        if validation.epoch > _MAX_READS:
            reader.give_up()
            await self._end(validation, reader)
            return True
        try:
            is_mine = await self._read(validation, reader)
        except TooMuchKept:
            reader.has_no_room()
            is_mine = True
        except UnreadableSeal as error:
            reader.is_unreadable(error)
            is_mine = True
        if is_mine:
            await self._end(validation, reader)
        return True

    async def _read(self, validation: Validation, reader: BatchReader) -> bool:
        """Reads the file to its end, or as many errors as are shown; False when the claim has ended before."""
        batch, after = validation.batch, -1
        file = {"id": batch["input_file_id"], "batch_id": None}
        while rows := await self._database.call(self._files.page, file, after):
            after = rows[-1][0]
            found = reader.read(rows)
            if reader.is_over:
                return True
            if reader.errors:
                found = []  # nothing of it will run
            if not await self._database.call(self._batches.add_lines, validation, found, self._settings.lease_s):
                return False
        reader.end()
        return True

    async def _end(self, validation: Validation, reader: BatchReader) -> None:
        if reader.errors:
            await self._database.call(self._batches.fail, validation, reader.errors)
        else:
            await self._database.call(self._batches.start, validation, reader.total)
