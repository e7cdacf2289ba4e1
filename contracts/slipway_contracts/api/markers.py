"""Metadata of fields and types for the CRD alone, like controller-gen's markers for Go types."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T", bound=type)

_RULES = "__kubernetes_rules__"
_DEFINITION = "__kubernetes_definition__"
_LISTED = "__kubernetes_listed_fields__"
_REQUIRED = "__kubernetes_required__"
_IMPLIED = "__kubernetes_implied_defaults__"


@dataclass(frozen=True, slots=True)
class CelRule:
    """A CEL rule of the API server, and its error message."""

    cel: str
    message: str


@dataclass(frozen=True, slots=True)
class Format:
    """The format of an integer or a string: int32, int64, date-time."""

    name: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """Values that the API server accepts. The operator also reads other values: a record may be of another release."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnyText:
    """An enumeration for which the API server accepts any text, so that a later release can add values."""


@dataclass(frozen=True, slots=True)
class ListMap:
    """A list that is merged by a key."""

    key: str


@dataclass(frozen=True, slots=True)
class ListSet:
    """A list of distinct values."""


@dataclass(frozen=True, slots=True)
class SchemaOf:
    """A map that is kept as it is written, and that another type describes."""

    type: type


@dataclass(frozen=True, slots=True)
class AtMost:
    """Number of items or characters that the API server accepts. The operator also reads longer values."""

    limit: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """A value that is written as one line, of at most so many characters."""

    limit: int


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """A column of `kubectl get`."""

    name: str
    type: str
    path: str
    description: str = ""
    wide: bool = False  # shown with -o wide only


@dataclass(frozen=True, slots=True)
class ScaleSubresource:
    """Paths of the scale subresource."""

    spec_replicas: str
    status_replicas: str
    selector: str


@dataclass(frozen=True, slots=True)
class Definition:
    """The parts of a CustomResourceDefinition besides the schema."""

    group: str
    version: str
    plural: str
    short_names: tuple[str, ...]
    categories: tuple[str, ...]
    columns: tuple[PrinterColumn, ...]
    status: bool = False
    cluster_scoped: bool = False
    scale: ScaleSubresource | None = None


def rule(cel: str, message: str) -> Callable[[T], T]:
    """Add a rule about a whole object; several are checked from the top."""

    def mark(kind: T) -> T:
        setattr(kind, _RULES, (CelRule(cel, message), *vars(kind).get(_RULES, ())))
        return kind

    return mark


def rules_of(kind: type) -> tuple[CelRule, ...]:
    """The rules of a type itself."""
    found: tuple[CelRule, ...] = vars(kind).get(_RULES, ())
    return found


def lists_only(*names: str) -> Callable[[T], T]:
    """Have the schema list these fields alone, by their names in the API.

    The API server keeps all others as they are, and only the operator reads them.
    """

    def mark(kind: T) -> T:
        setattr(kind, _LISTED, names)
        return kind

    return mark


def listed_of(kind: type) -> tuple[str, ...] | None:
    """The fields that `lists_only` names; None: the schema lists all."""
    listed: tuple[str, ...] | None = vars(kind).get(_LISTED)
    return listed


def required(*names: str) -> Callable[[T], T]:
    """Fields of a part of the status that must be there; in a spec those without a default must."""

    def mark(kind: T) -> T:
        setattr(kind, _REQUIRED, names)
        return kind

    return mark


def required_of(kind: type) -> tuple[str, ...]:
    """The fields that `required` names."""
    found: tuple[str, ...] = vars(kind).get(_REQUIRED, ())
    return found


def implied_defaults(*, written: tuple[str, ...] = ()) -> Callable[[T], T]:
    """Keep the defaults of a type, and of the types that extend it, out of its schema, except for the `written` ones.

    The API server would write them into each object, as if its owner had: `kubectl describe` would print a line for
    each. The operator knows them, and the descriptions name them.
    """

    def mark(kind: T) -> T:
        setattr(kind, _IMPLIED, written)
        return kind

    return mark


def implies_default(kind: type, name: str) -> bool:
    """Whether the default of a field, by its name in Python, is not in the schema."""
    written: tuple[str, ...] | None = getattr(kind, _IMPLIED, None)
    return written is not None and name not in written


def custom_resource(definition: Definition) -> Callable[[T], T]:
    """Make a type the root of a CustomResourceDefinition."""

    def mark(kind: T) -> T:
        setattr(kind, _DEFINITION, definition)
        return kind

    return mark


def definition_of(kind: Any) -> Definition:
    """The definition of a root type."""
    found: Definition = getattr(kind, _DEFINITION)
    return found
