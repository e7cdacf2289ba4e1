"""Model names and their owners: claims, grants of cluster admins, and the text form of both."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

import msgspec

from slipway_contracts.api.times import format_time, parse_time
from slipway_contracts.model_routes import spec as model_routes

ANNOTATION = "slipway.dev/model-names"  # of a Namespace: name patterns reserved for it, separated by commas
DATA_KEY = "names.json"  # key in the ConfigMap with the claims
MAX_NAME = 128  # characters, as in the CRD
MAX_PATTERNS = 64  # of one namespace; further ones are ignored

_NAME = re.compile(rf"[A-Za-z0-9]([A-Za-z0-9._:-]{{0,{MAX_NAME - 2}}}[A-Za-z0-9])?")
_PATTERN = re.compile(rf"([A-Za-z0-9][A-Za-z0-9._:-]{{0,{MAX_NAME - 1}}})?\*|" + _NAME.pattern)


_ROUTE = f"{model_routes.KIND}/"  # begins the name of an owner that is a ModelRoute: no namespace has such a name


def owner_of_route(name: str) -> str:
    """The owner's name of a ModelRoute. `name`: its `namespace/name`."""
    return _ROUTE + name


def is_route(owner: str) -> bool:
    """Whether an owner is a ModelRoute, and no ModelDeployment."""
    return owner.startswith(_ROUTE)


def namespace_of(owner: str) -> str:
    """The namespace of an owner."""
    return owner.removeprefix(_ROUTE).partition("/")[0]


@dataclass(frozen=True, slots=True)
class Claim:
    """The owner of a model name. The claim outlives the owner for a while, in which its namespace keeps the name."""

    owner: str  # namespace/name of a ModelDeployment, ModelRoute/namespace/name of a ModelRoute
    since: datetime
    released_at: datetime | None = None  # when the owner was deleted or gave up the name

    @property
    def namespace(self) -> str:
        """The namespace of the owner."""
        return namespace_of(self.owner)


@dataclass(frozen=True, slots=True)
class Wish:
    """An existing ModelDeployment and the model name in its spec, or a ModelRoute and one of its names."""

    owner: str  # as of a claim
    name: str
    created: str  # RFC 3339 in UTC: text order is time order

    @property
    def namespace(self) -> str:
        """The namespace of the object."""
        return namespace_of(self.owner)

    @property
    def key(self) -> str:
        """By which its standing is found: a ModelDeployment has one name, a ModelRoute several."""
        return route_key(self.owner, self.name) if is_route(self.owner) else self.owner


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a ModelDeployment or a ModelRoute owns a model name; `reason` is empty when it does.

    `yields`: a ModelRoute of the same namespace has the name of a ModelDeployment, which is no conflict.
    """

    owner: str  # as of a claim. Requests for namespace/name always reach a ModelDeployment
    name: str
    reason: str = ""
    message: str = ""
    known: bool = True  # False: the owner is unknown at present
    yields: bool = False

    @property
    def lost(self) -> bool:
        """Whether requests for the name do not reach the ModelDeployment."""
        return bool(self.reason)


@dataclass(frozen=True)
class Grants:
    """Patterns of model names (a name, or a prefix with `*`), with the namespaces that alone may use them."""

    namespaces: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by pattern

    @cached_property
    def _lengths(self) -> list[int]:
        """Lengths of the prefixes, longest first."""
        return sorted({len(pattern) - 1 for pattern in self.namespaces if pattern.endswith("*")}, reverse=True)

    def holders(self, name: str) -> frozenset[str] | None:
        """Return the namespaces that may use a name; None: all. The most specific pattern counts: the longest match."""
        if name in self.namespaces:
            return self.namespaces[name]
        beginnings = (name[:length] + "*" for length in self._lengths if length <= len(name))
        return next((self.namespaces[one] for one in beginnings if one in self.namespaces), None)

    def allow(self, name: str, namespace: str) -> bool:
        """Whether a namespace may use a name."""
        holders = self.holders(name)
        return holders is None or namespace in holders


def grants(*written: Iterable[tuple[str, str]]) -> tuple[Grants, list[str]]:
    """Parse pairs of a namespace and its comma-separated patterns; also return messages about invalid patterns."""
    found: dict[str, set[str]] = {}
    problems = []
    for namespace, text in (pair for pairs in written for pair in pairs):
        patterns = [pattern for part in text.split(",") if (pattern := part.strip())]
        if len(patterns) > MAX_PATTERNS:
            problems.append(f"namespace {namespace}: of {len(patterns)} model names the first {MAX_PATTERNS} count")
        for pattern in patterns[:MAX_PATTERNS]:
            if _PATTERN.fullmatch(pattern):
                found.setdefault(pattern, set()).add(namespace)
            else:
                problems.append(
                    f"namespace {namespace}: {pattern[:64]!r} is no model name; write a name such as chat, or the "
                    "beginning of names such as team-*"
                )
    return Grants({pattern: frozenset(namespaces) for pattern, namespaces in found.items()}), problems


def route_key(owner: str, name: str) -> str:
    """Key of the standing of one name of a ModelRoute."""
    return f"{owner} {name}"


def is_name(name: str) -> bool:
    """Whether the name is valid. A slash is not: the name could equal the namespace/name of a ModelDeployment."""
    return bool(_NAME.fullmatch(name))


class _Written(msgspec.Struct, omit_defaults=True, rename="camel"):
    """A claim as JSON."""

    owner: str
    since: str
    released_at: str | None = None


_DECODER = msgspec.json.Decoder(dict[str, _Written])


def decode(text: str) -> dict[str, Claim]:
    """Parse the ConfigMap's text; returns claims by model name.

    Raises:
        ValueError: when the text is invalid.
    """
    try:
        written = _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return {
        name: Claim(one.owner, parse_time(one.since), parse_time(one.released_at) if one.released_at else None)
        for name, one in written.items()
    }


def encode(claims: Mapping[str, Claim]) -> str:
    """Return the ConfigMap's text: one line per claim, sorted by name, so that a diff is readable."""
    lines = (f"{_text(name)}: {_line(claim)}" for name, claim in sorted(claims.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n" if claims else "{}\n"


def size_bytes(name: str, claim: Claim) -> int:
    """Return an upper bound of the bytes of a claim in the text, whether it is released or not."""
    return len(name) + len(claim.owner) + _FRAME_BYTES


def _line(claim: Claim) -> str:
    released = format_time(claim.released_at) if claim.released_at else None
    return msgspec.json.encode(_Written(claim.owner, format_time(claim.since), released)).decode()


def _text(value: str) -> str:
    return msgspec.json.encode(value).decode()


_FRAME_BYTES = 96  # JSON keys, both times, quotes and commas of a claim
