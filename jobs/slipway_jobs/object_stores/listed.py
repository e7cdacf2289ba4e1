"""The buckets that batches of a tenant may read: a file of the administrator's, a mounted Secret.

`{"stores": [{"tenant": "team-a", "bucket": "team-a-batches", "prefix": "inputs/", "endpoint": "https://s3.example.com",
"region": "eu-central-1", "accessKeyId": "…", "secretAccessKey": "…"}]}`. No credentials come from anywhere else.
"""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from yarl import URL

SCHEME = "s3://"
MAX_KEY_BYTES = 1024
MAX_URI_CHARACTERS = len(SCHEME) + 64 + MAX_KEY_BYTES
_MAX_FILE_BYTES = 1 << 20
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ENDPOINT = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Name = Annotated[str, Meta(min_length=1, max_length=253)]
Secret = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[\x21-\x7e]+\Z")]


class ObjectStore(Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One bucket, or the objects of it below `prefix`, with the credentials of one tenant."""

    tenant: Name
    bucket: Name
    endpoint: Name
    region: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,63}\Z")]
    access_key_id: Secret
    secret_access_key: Secret
    session_token: Secret | None = None
    prefix: Annotated[str, Meta(max_length=MAX_KEY_BYTES)] = ""

    def __repr__(self) -> str:
        return f"ObjectStore({self.tenant!r}, {self.bucket!r})"  # and no credentials

    def check(self) -> None:
        """Raises ValueError: a field has no valid value."""
        if not _BUCKET.fullmatch(self.bucket):
            raise ValueError(f"{self.bucket!r} is no name of a bucket")
        if not _ENDPOINT.fullmatch(self.endpoint):
            raise ValueError(f"the endpoint of {self.bucket!r} must be http:// or https:// with a host, and no path")
        URL(self.endpoint)  # which checks the port

    @property
    def is_loopback(self) -> bool:
        """Whether the administrator wrote an address of this machine, which no name server can choose."""
        try:
            return ipaddress.ip_address(URL(self.endpoint).host or "").is_loopback
        except ValueError:
            return False


class _File(Struct, forbid_unknown_fields=True):
    stores: list[ObjectStore]


_FILE = msgspec.json.Decoder(_File)


@dataclass(frozen=True, slots=True)
class ObjectName:
    """What a request names."""

    bucket: str
    key: str

    @property
    def uri(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


class StoreList:
    """The list in a file, which is read for each request: a Secret may change. `path`: "" for no list."""

    def __init__(self, path: str) -> None:
        self._path = path

    def check(self) -> None:
        """Raises ValueError: the file cannot be read, or has no valid list. The message names no credentials."""
        self._checked(self._read())

    def find(self, tenant: str, name: ObjectName) -> ObjectStore | None:
        """The store by which the tenant may read the object; of several the one with the longest prefix.

        Raises:
            ValueError: as `check`, but for stores of others that only have a wrong bucket or endpoint.
        """
        fitting = [
            store
            for store in self._read()
            if store.tenant == tenant and store.bucket == name.bucket and name.key.startswith(store.prefix)
        ]
        return max(self._checked(fitting), key=lambda store: len(store.prefix), default=None)

    def _read(self) -> list[ObjectStore]:
        if not self._path:
            return []
        try:
            with Path(self._path).open("rb") as file:
                data = file.read(_MAX_FILE_BYTES + 1)
            if len(data) > _MAX_FILE_BYTES:
                raise ValueError(f"it has more than {_MAX_FILE_BYTES} bytes")
            return _FILE.decode(data).stores
        except (OSError, ValueError, RecursionError) as error:
            raise self._wrong(error) from None

    def _checked(self, stores: list[ObjectStore]) -> list[ObjectStore]:
        try:
            for store in stores:
                store.check()
        except ValueError as error:
            raise self._wrong(error) from None
        return stores

    def _wrong(self, error: Exception) -> ValueError:
        return ValueError(f"{self._path} has no valid list of object stores: {error}")


def parse_uri(text: str) -> ObjectName:
    """
    Raises:
        ValueError: it names no object, as the end of a sentence that begins with the field.
    """
    bucket, slash, key = text.removeprefix(SCHEME).partition("/")
    if not text.startswith(SCHEME) or not slash or not _BUCKET.fullmatch(bucket) or not key:
        raise ValueError("must be s3://BUCKET/KEY")
    if len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise ValueError(f"has a key of more than {MAX_KEY_BYTES} bytes")
    # Servers between may resolve such parts, and so leave the prefix or the bucket.
    if _CONTROL.search(key) or any(part in (".", "..") for part in key.split("/")):
        raise ValueError("has a key with a part . or .., or with characters of control")
    return ObjectName(bucket, key)
