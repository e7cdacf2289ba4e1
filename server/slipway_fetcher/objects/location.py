"""What an s3://, gs:// or az:// URI names, and the host that has it; pure."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..folder import FetchError
from .access import StoreAccess

SCHEMES = ("s3", "gs", "az")
_KINDS = {"s3": "bucket", "gs": "bucket", "az": "container"}
# As the stores have them; the CRD has the same rules.
_NAMES = {
    "s3": re.compile(r"[a-z0-9](?!.*\.[.-])[a-z0-9.-]*[a-z0-9]"),
    "gs": re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?"),
    "az": re.compile(r"[a-z0-9]+(-[a-z0-9]+)*"),
}
_LONGEST = {"s3": 63, "gs": 222, "az": 63}
_REGION = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
DEFAULT_REGION = "us-east-1"
LONGEST_PREFIX = 1024


@dataclass(frozen=True, slots=True)
class Location:
    """A folder of a bucket."""

    scheme: str
    bucket: str
    prefix: str  # without slashes around it; empty for the whole bucket

    @property
    def shown(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def kind(self) -> str:
        return _KINDS[self.scheme]


def read(uri: str) -> Location:
    """The location that a URI names.

    Raises:
        FetchError: for a URI that no store has.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    example = f"write {scheme}://{_KINDS[scheme]}/folder"
    if not 3 <= len(bucket) <= _LONGEST[scheme] or not _NAMES[scheme].fullmatch(bucket):
        raise FetchError(f"{bucket[:64]!r} is no name of a {_KINDS[scheme]}: {example}.")
    prefix = prefix.strip("/")
    parts = prefix.split("/") if prefix else []
    wrong = any(part in ("", ".", "..") for part in parts) or any(letter in prefix for letter in "?#\\")
    if wrong or not prefix.isprintable() or len(prefix.encode()) > LONGEST_PREFIX:
        raise FetchError(f"{prefix[:128]!r} is no folder of a {_KINDS[scheme]}: {example}.")
    return Location(scheme, bucket, prefix)


def endpoint(location: Location, access: StoreAccess) -> str:
    """The URL of the store.

    Raises:
        FetchError: when it is missing or written wrong.
    """
    if access.endpoint:
        _check("endpoint", access.endpoint, _ENDPOINT, "https://host or http://host:9000")
        _check_port(access.endpoint)
        return access.endpoint.rstrip("/")
    if location.scheme == "gs":
        return "https://storage.googleapis.com"
    if location.scheme == "az":
        return f"https://{account(access)}.blob.core.windows.net"
    zone = region(access)
    return f"https://s3.{zone}.amazonaws.com{'.cn' if zone.startswith('cn-') else ''}"


def _check_port(url: str) -> None:
    try:
        _ = urlsplit(url).port
    except ValueError:
        raise FetchError("spec.model.objectStore.endpoint has a port that does not exist.") from None


def region(access: StoreAccess) -> str:
    _check("region", access.region or DEFAULT_REGION, _REGION, DEFAULT_REGION)
    return access.region or DEFAULT_REGION


def account(access: StoreAccess) -> str:
    """The storage account of Azure, by its flag or its Secret."""
    named = access.secret("AZURE_STORAGE_ACCOUNT_NAME")
    if access.account and named and named != access.account:
        raise FetchError(
            "spec.model.objectStore.account and AZURE_STORAGE_ACCOUNT_NAME of the Secret name two accounts: "
            "write one of them."
        )
    found = access.account or named
    if not found:
        raise FetchError(
            "An az:// model needs its storage account: write it in spec.model.objectStore.account, or as "
            "AZURE_STORAGE_ACCOUNT_NAME into the Secret of spec.model.secretRef."
        )
    _check("account", found, _ACCOUNT, "3 to 24 lower-case letters and digits")
    return found


def _check(field: str, value: str, pattern: re.Pattern[str], example: str) -> None:
    if len(value) > 256 or not pattern.fullmatch(value):
        raise FetchError(f"spec.model.objectStore.{field} cannot be {value[:64]!r}: write for example {example}.")
