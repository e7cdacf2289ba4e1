"""Structural schemas of API types: one test for each construct."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import Field

from slipway_contracts.api import markers
from slipway_contracts.api.markers import (
    AnyText,
    AtMost,
    CelRule,
    Definition,
    ListMap,
    ListSet,
    OneOf,
    PrinterColumn,
    ScaleSubresource,
    SchemaOf,
)
from slipway_contracts.api.types import ApiType, Int32, Int64, IntOrString, Time
from slipway_operator.api import crd
from slipway_operator.api.fitting import fitted
from slipway_operator.api.schema import structural


class Colour(StrEnum):
    """A colour."""

    RED = "Red"
    BLUE = "Blue"


def schema_of(annotation: Any, default: Any = ...) -> dict[str, Any]:
    """The schema of one field."""
    made = type("Made", (ApiType,), {"__annotations__": {"some_field": annotation}, "some_field": default})
    node: dict[str, Any] = structural(made)["properties"]["someField"]
    return node


class Leaf(ApiType):
    """A leaf."""

    size: int = 1


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (float, {"type": "number"}),
        (Int32, {"type": "integer", "format": "int32"}),
        (Int64, {"type": "integer", "format": "int64"}),
        (Time, {"type": "string", "format": "date-time"}),
        (datetime, {"type": "string"}),
        (IntOrString, {"x-kubernetes-int-or-string": True}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Colour, {"type": "string", "enum": ["Red", "Blue"]}),
        (Annotated[Colour, AnyText()], {"type": "string"}),
        (Annotated[str, OneOf(("a", "b"))], {"type": "string", "enum": ["a", "b"]}),
        (str | None, {"type": "string"}),
        (Annotated[str, Field(max_length=3)] | None, {"type": "string", "maxLength": 3}),
        (tuple[str, ...], {"type": "array", "items": {"type": "string"}}),
        (dict[str, str], {"type": "object", "additionalProperties": {"type": "string"}}),
        (dict[str, Any], {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        (Annotated[Int32, Field(ge=1, le=9)], {"type": "integer", "format": "int32", "minimum": 1, "maximum": 9}),
        (
            Annotated[float, Field(gt=0, le=0.5)],
            {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 0.5},
        ),
        (
            Annotated[str, Field(min_length=1, max_length=9, pattern="^a")],
            {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^a"},
        ),
        (
            Annotated[tuple[Annotated[str, Field(description="One.")], ...], Field(min_length=1, max_length=2)],
            {"type": "array", "items": {"type": "string", "description": "One."}, "minItems": 1, "maxItems": 2},
        ),
        (
            Annotated[dict[str, str], Field(max_length=2)],
            {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 2},
        ),
        (Annotated[str, AtMost(4)], {"type": "string", "maxLength": 4}),
        (
            Annotated[tuple[str, ...], AtMost(4), ListSet()],
            {"type": "array", "items": {"type": "string"}, "maxItems": 4, "x-kubernetes-list-type": "set"},
        ),
        (
            Annotated[str, CelRule("self != ''", "write one"), CelRule("self != 'a'", "write another")],
            {
                "type": "string",
                "x-kubernetes-validations": [
                    {"rule": "self != ''", "message": "write one"},
                    {"rule": "self != 'a'", "message": "write another"},
                ],
            },
        ),
    ],
)
def test_fields(annotation: Any, expected: dict[str, Any]) -> None:
    assert schema_of(annotation) == expected


def test_lists_that_are_merged_by_a_key() -> None:
    node = schema_of(Annotated[tuple[Leaf, ...], ListMap("size")])
    assert (node["x-kubernetes-list-type"], node["x-kubernetes-list-map-keys"]) == ("map", ["size"])
    assert node["items"] == structural(Leaf)


def test_a_map_that_another_type_describes_keeps_what_is_not_listed() -> None:
    @markers.lists_only("known")
    class Open(ApiType):
        """An open one."""

        known: str
        read_by_the_operator: str

    node = schema_of(Annotated[dict[str, Any], SchemaOf(Open)])
    assert node["x-kubernetes-preserve-unknown-fields"] and list(node["properties"]) == ["known"]
    assert node["required"] == ["known"]


@pytest.mark.parametrize(
    ("default", "expected"), [("a", "a"), (0, 0), (False, False), (Leaf(), {}), (Leaf(size=2), {"size": 2})]
)
def test_defaults(default: Any, expected: Any) -> None:
    assert schema_of(type(default), default)["default"] == expected


@pytest.mark.parametrize("default", [None, ()])
def test_a_field_that_may_be_left_out_has_no_default(default: Any) -> None:
    node = structural(type("Made", (ApiType,), {"__annotations__": {"a": tuple[str, ...] | None}, "a": default}))
    assert "default" not in node["properties"]["a"] and "required" not in node


def test_implied_defaults_are_in_descriptions_and_not_in_the_schema() -> None:
    @markers.implied_defaults(written=("size",))
    class Base(ApiType):
        """A base."""

        size: int = 1
        paused: bool = False

    class Extended(Base):
        """An extended one."""

        leaf: Leaf = Leaf()

    fields = structural(Extended)["properties"]
    assert fields["size"]["default"] == 1
    assert "default" not in fields["paused"] and fields["paused"]["description"].endswith("Default is false.")
    assert "default" not in fields["leaf"] and "Default" not in fields["leaf"]["description"]


def test_field_without_default_is_required_and_rules_keep_their_order() -> None:
    @markers.rule("first", "one")
    @markers.rule("second", "two")
    class Ruled(ApiType):
        """A ruled one. With two
        lines.

        And a paragraph for who reads the code.
        """

        there: str
        here: str | None = None

    node = structural(Ruled)
    assert node["required"] == ["there"]
    assert [rule["rule"] for rule in node["x-kubernetes-validations"]] == ["first", "second"]
    assert node["description"] == "A ruled one. With two lines."


def test_a_dataclass_is_a_part_of_a_status_nothing_is_filled_in() -> None:
    @markers.required("one_word")
    @dataclass(frozen=True)
    class Observed:
        """What was seen."""

        one_word: str
        other: str
        count: int = 3

    node = structural(Observed)
    assert node["required"] == ["oneWord"]
    assert node["properties"]["count"] == {"type": "integer"}


def test_types_without_a_structural_schema_are_refused() -> None:
    with pytest.raises(TypeError):
        schema_of(str | bool)
    with pytest.raises(TypeError, match="object is no API type"):
        schema_of(object)


@markers.custom_resource(
    Definition(
        group="example.com",
        version="v1",
        plural="things",
        short_names=("th",),
        categories=("all",),
        columns=(
            PrinterColumn("Size", "integer", ".spec.size", "How big."),
            PrinterColumn("Age", "date", ".metadata.x", wide=True),
        ),
        status=True,
        scale=ScaleSubresource(".spec.replicas", ".status.replicas", ".status.selector"),
    )
)
class Thing(ApiType):
    """A thing."""

    spec: Leaf


def test_a_whole_definition() -> None:
    made = yaml.safe_load(crd.text(Thing))
    assert made == crd.manifest(Thing)
    assert made["metadata"]["name"] == "things.example.com"
    assert made["spec"]["names"]["listKind"] == "ThingList" and made["spec"]["names"]["singular"] == "thing"
    (version,) = made["spec"]["versions"]
    assert version["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    assert version["additionalPrinterColumns"] == [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "How big."},
        {"name": "Age", "type": "date", "priority": 1, "jsonPath": ".metadata.x"},
    ]
    root = version["schema"]["openAPIV3Schema"]
    assert list(root["properties"]) == ["apiVersion", "kind", "metadata", "spec"]
    assert root["properties"]["metadata"] == {"type": "object"} and root["required"] == ["spec"]


@dataclass(frozen=True, slots=True)
class Item:
    text: Annotated[str, AtMost(4)] = ""
    number: Int32 = 0


@dataclass(frozen=True, slots=True)
class Whole:
    items: Annotated[tuple[Item, ...], AtMost(2)] = ()
    total: Int64 = 0
    free: str = ""


def test_long_values_are_cut() -> None:
    item = {"text": "abcdef", "number": 2**40}
    written = {"items": [{"text": "x"}, item, {"text": "abcd", "number": -(2**40)}], "total": 2**80, "free": "y" * 9}
    cut = [{"text": "abc…", "number": 2**31 - 1}, {"text": "abcd", "number": -(2**31)}]
    assert fitted(Whole, written) == {"items": cut, "total": 2**63 - 1, "free": "y" * 9}
