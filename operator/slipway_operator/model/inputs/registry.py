"""What a models:/ URI names in an MLflow model registry, and the version that it was resolved to; pure."""

import re
from dataclasses import dataclass

from slipway_contracts.api.types import strict
from slipway_operator.model.text import printable

SCHEME, ARTIFACTS = "models:", "mlflow-artifacts"
PREFIX = f"{SCHEME}/"
# Names as MLflow has them, and of printable characters; the CRD has the same rule.
_URI = re.compile(
    r"models:/([^/:@?#%\x00-\x20\x7f][^/:@?#%\x00-\x1f\x7f]{0,255})(?:@([A-Za-z0-9_-]{1,128})|/([1-9][0-9]{0,8}))"
)
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_OBJECTS = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^?#]*)?")
_ARTIFACTS = re.compile(r"mlflow-artifacts:///[^?#]+")
_RUN = re.compile(r"[0-9a-zA-Z]{1,64}")
LONGEST_SOURCE = 2048


@dataclass(frozen=True, slots=True)
class RegistryReference:
    """A registered model by an alias or by the number of a version; the other one is empty."""

    name: str
    alias: str = ""
    version: str = ""

    @property
    def uri(self) -> str:
        return f"{PREFIX}{self.name}@{self.alias}" if self.alias else version_uri(self.name, self.version)


@dataclass(frozen=True, slots=True)
class RegistrySource:
    """A version of a registered model, as it identifies a revision; `Model.uri` is where its files are."""

    name: str
    version: str

    @property
    def uri(self) -> str:
        return version_uri(self.name, self.version)


@strict
@dataclass(frozen=True, slots=True)
class RegistryFacts:
    """What the registry has about a version. All texts are a stranger's: bounded, and on one line."""

    owner: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()  # NAME=VALUE
    run: str = ""
    metrics: tuple[str, ...] = ()  # NAME=VALUE of the run
    dataset: str = ""
    aliases: tuple[str, ...] = ()  # ALIAS=VERSION of the registered model
    latest: str = ""  # number of the newest version


@dataclass(frozen=True, slots=True)
class RegistryVersion:
    """The version that a URI was resolved to. `source`: where the files are, as the fetcher reads it."""

    uri: str
    version: str
    source: str
    facts: RegistryFacts = RegistryFacts()


def version_uri(name: str, version: str) -> str:
    return f"{PREFIX}{name}/{version}"


def is_reference(uri: str) -> bool:
    """Whether a URI is meant to name a registered model."""
    return uri.startswith(SCHEME)


def read_reference(uri: str) -> RegistryReference:
    """What a URI names.

    Raises:
        ValueError: for a URI that MLflow's registry cannot have.
    """
    found = _URI.fullmatch(uri)
    if found is None or not uri.isprintable():
        raise ValueError(
            f"spec.model.uri {printable(uri[:128])!r} names no version of a registered model: write "
            "models:/NAME@ALIAS or models:/NAME/3"
        )
    return RegistryReference(found[1], found[2] or "", found[3] or "")


def is_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None


def is_run(text: str) -> bool:
    """Whether a text is an id of a run, so that it can be a part of a request and of a path."""
    return _RUN.fullmatch(text) is not None


def source_of(artifacts: str, tracking_host: str) -> str:
    """Where a version's files are, as the fetcher reads it. `tracking_host`: host and port of the tracking server.

    Raises:
        ValueError: for a place that is not supported; the message names its scheme.
    """
    scheme, _, rest = artifacts.partition(":")
    shown = printable(artifacts[:128])
    if scheme == ARTIFACTS:
        host, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest.lstrip("/"))
        if host and host != tracking_host:
            raise ValueError(f"its files are at another tracking server: {shown!r}")
        source = f"{ARTIFACTS}:///{path.rstrip('/')}"
    else:
        source = artifacts.rstrip("/")
    if not is_source(source):
        raise ValueError(
            f"its files are at {shown!r}: Slipway reads mlflow-artifacts:/ through the tracking server, and s3://"
        )
    return source


def is_source(text: str) -> bool:
    """Whether a text is a source that pods can fetch: what a status or a record has may be forged."""
    parts = text.partition("://")[2].split("/")
    plain = text.isprintable() and len(text) <= LONGEST_SOURCE and ".." not in parts and "\\" not in text
    known = _OBJECTS.fullmatch(text) or _ARTIFACTS.fullmatch(text)
    return plain and known is not None
