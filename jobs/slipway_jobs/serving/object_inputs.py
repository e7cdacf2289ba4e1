"""Input files of batches by `s3://`: copied into a file of the tenant's before the batch is made."""

import asyncio
import logging
from contextlib import aclosing

from ..object_stores.listed import MAX_URI_CHARACTERS, SCHEME, ObjectName, StoreList, parse_uri
from ..object_stores.reading import CODES, ObjectReader, ObjectRefused
from ..settings import JobsSettings
from ..store.file_store import NewFile
from .refusal import JobsRefusal, invalid
from .upload import Uploads, new_id

log = logging.getLogger(__name__)
PARAM = "input_file_id"
MAX_CHARACTERS = MAX_URI_CHARACTERS
_READ_S = 300.0  # of a whole object: the client waits for it
_BUSY_S = 10
_UNAVAILABLE = "object_store_unavailable"


class ObjectInputs:
    """Copies objects to files, which then are as those that were uploaded."""

    def __init__(self, settings: JobsSettings, uploads: Uploads, stores: StoreList) -> None:
        self._settings, self._uploads, self._stores = settings, uploads, stores

    @staticmethod
    def is_object(input_file_id: str) -> bool:
        return input_file_id.startswith(SCHEME)

    async def copy(self, tenant: str, uri: str) -> NewFile:
        """Copies an object to a file of the tenant's.

        Raises:
            JobsRefusal: the object cannot be read by this tenant, or is no file that could be uploaded.
        """
        try:
            name = parse_uri(uri)
        except ValueError as error:
            raise invalid(PARAM, f"{PARAM} {error}.") from None
        try:
            store = self._stores.find(tenant, name)
        except ValueError as error:
            log.error("%s", error)
            message = "The list of object stores cannot be read now."
            raise JobsRefusal(503, _UNAVAILABLE, message, param=PARAM, retry_after_s=_BUSY_S) from None
        if store is None:
            message = f"No object store is listed for you that has {name.uri[:200]!r}: ask the administrator."
            raise invalid(PARAM, message, "object_store_not_listed")
        new = NewFile(new_id("file-"), tenant, self._settings.retention_s, filename=name.uri[:512])
        reader = ObjectReader(store, name, self._settings.max_file_bytes)
        try:
            with self._uploads.place(tenant):
                async with asyncio.timeout(_READ_S), aclosing(reader.chunks()) as chunks:
                    await self._uploads.copy(new, chunks, PARAM)
        except TimeoutError:
            raise _refusal(name, _UNAVAILABLE, f"cannot be read within {_READ_S:.0f} s") from None
        except ObjectRefused as refused:
            raise _refusal(name, refused.code, str(refused)) from None
        return new

    async def drop(self, new: NewFile) -> None:
        """For a copy whose batch was not made."""
        await self._uploads.drop(new)


def _refusal(name: ObjectName, code: str, message: str) -> JobsRefusal:
    status = CODES[code]
    sentence = f"The object {name.uri[:200]!r} {message}."
    return JobsRefusal(status, code, sentence, param=PARAM, retry_after_s=_BUSY_S if status == 503 else None)
