"""What an oci:// URI names; pure."""

import re
from dataclasses import dataclass

from ..folder import FetchError

SCHEME = "oci"
_URI = re.compile(
    r"oci://(?P<host>[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?)/(?P<name>[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*)"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_HUB, _HUB_HOST = ("docker.io", "index.docker.io"), "registry-1.docker.io"


@dataclass(frozen=True, slots=True)
class ImageReference:
    """A repository of a registry, with the tag or digest to pull."""

    host: str  # with its port
    name: str
    tag: str
    digest: str  # sha256:…, or empty

    @property
    def shown(self) -> str:
        return f"oci://{self.host}/{self.name}"

    @property
    def version(self) -> str:
        """What a manifest is requested by: the digest, or else the tag."""
        return self.digest or self.tag

    @property
    def address(self) -> str:
        """The host that requests go to: for docker.io another host than the written one."""
        return _HUB_HOST if self.host in _HUB else self.host


def read(uri: str) -> ImageReference:
    """Parse an oci:// URI.

    Raises:
        FetchError: for a URI without a repository, or with neither a tag nor a digest.
    """
    found = _URI.fullmatch(uri) if len(uri) <= 2048 else None
    if not found or not (found["tag"] or found["digest"]):
        raise FetchError(
            f"{uri[:256]!r} names no repository with a tag or a digest: write oci://registry/repository:v1."
        )
    name = found["name"]
    library = found["host"] in _HUB and "/" not in name
    return ImageReference(
        found["host"], f"library/{name}" if library else name, found["tag"] or "", found["digest"] or ""
    )
