"""status.traffic: what gateways route by."""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from slipway_operator.api.markers import AtMost
from slipway_operator.api.types import Int32, Int64
from slipway_operator.api.writing import to_json


@dataclass(frozen=True, slots=True)
class HeaderMatch:
    """One header.

    A request header and the value it has (`exact`) or begins with (`prefix`).
    """

    name: str
    """Its name in lower case."""
    exact: str | None = None
    """The whole value."""
    prefix: str | None = None
    """What the value begins with."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One revision.

    A revision and its share of new requests, in percent.
    """

    revision: str
    """Its hash; with -baseline behind it, fresh pods of the stable one."""
    weight: Int32
    """Percent of new requests."""
    version: str | None = None
    """Its version for people."""


@dataclass(frozen=True, slots=True)
class HeaderRoute:
    """One route.

    Requests with all of these headers go to the revision, whatever its weight.
    """

    name: str
    """Its name."""
    revision: str
    """Where its requests go."""
    match: Annotated[tuple[HeaderMatch, ...], AtMost(8)]
    """Headers that a request has, all of them."""


@dataclass(frozen=True, slots=True)
class MirrorRoute:
    """One route.

    The revision gets copies of this share of the requests that the other one answers, in percent.
    """

    name: str
    """Its name."""
    revision: str
    """Where the copies go."""
    percentage: Int32
    """Percent of the requests of the other revision."""
    match: Annotated[tuple[HeaderMatch, ...], AtMost(8)] = ()
    """Headers that a request has, all of them."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the gateways route by.

    What the gateways route by; see docs/contracts.md.
    """

    generation: Int64
    """Grows with every change."""
    model: str
    """The name that clients send."""
    salt: str
    """Salt of the split; changes with each attempt, so that each tests other users."""
    backends: Annotated[tuple[Backend, ...], AtMost(8)] = ()
    """Revisions and their weights, the one under test first."""
    header_routes: Annotated[tuple[HeaderRoute, ...], AtMost(50)] = ()
    """Requests that go to a revision by their headers, before weights are looked at."""
    hold_seconds: Int32 | None = None
    """How long a request waits at a gateway while no pod is ready."""
    acknowledged: str = ""
    """Gateways that route by this generation, of the ready ones."""
    mirror_routes: Annotated[tuple[MirrorRoute, ...], AtMost(50)] = ()
    """Requests of which a revision gets copies whose answers no client sees."""
    asleep: bool | None = None
    """Whether gateways send nothing and hold what comes."""
    wake_seconds: Int32 | None = None
    """How long a wake is expected to take."""
    forward_headers: Annotated[
        tuple[Annotated[str, Field(description="One header in lower case.")], ...], AtMost(4)
    ] = ()
    """Credentials of clients that reach the pods."""

    def weight(self, revision: str | None) -> int:
        """Percent of new requests of a revision."""
        return next((backend.weight for backend in self.backends if backend.revision == revision), 0)

    @property
    def digest(self) -> str:
        """What a gateway reports that routes by this table; who acknowledged it is no part of it."""
        return _digest(replace(self, acknowledged=""))


@lru_cache(4096)
def _digest(table: Traffic) -> str:
    """SHA-256 of canonical JSON, as in docs/contracts.md."""
    told = {key: item for key, item in to_json(table).items() if key != "acknowledged"}
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
