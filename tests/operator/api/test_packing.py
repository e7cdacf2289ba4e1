"""Fields of a status that are written as one text."""

import base64
import json
import zlib
from typing import Any

import pytest

from slipway_contracts.api.markers import PackedFields
from slipway_operator.api import packing
from slipway_operator.api.packing import Unpackable, pack, unpack, with_packed, with_unpacked

FIELDS = PackedFields("counters", "", ("counts", "trace"))


def text(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


def test_packed_fields_are_unpacked() -> None:
    value = {"id": "a", "counts": [1, 2, {"x": "ü"}], "trace": [3]}
    written = with_packed(value, FIELDS)
    assert set(written) == {"id", "counters"}
    assert with_unpacked(written, FIELDS) == value


def test_nothing_is_packed_into_nothing() -> None:
    assert with_packed({"id": "a"}, FIELDS) == {"id": "a"}
    assert with_unpacked({"id": "a", "counts": [1]}, FIELDS) == {"id": "a", "counts": [1]}


def test_only_fields_that_are_packed_are_unpacked() -> None:
    forged = {"id": "a", "counters": pack({"id": "b", "counts": [1]})}
    assert with_unpacked(forged, FIELDS) == {"id": "a", "counts": [1]}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (1, "no text"),
        (["a"], "no text"),
        ("", "no packed object"),
        ("ä", "cannot be unpacked"),
        ("abc", "cannot be unpacked"),
        (base64.b64encode(b"abc").decode(), "cannot be unpacked"),
        (text(b"[1]"), "no packed object"),
        (text(b"{"), "cannot be unpacked"),
        (text(b"[" * 100_000), "cannot be unpacked"),
        (text(b"\xff"), "cannot be unpacked"),
        (text(b"{}")[:-4], "cannot be unpacked|no packed object"),
    ],
)
def test_invalid_packed_object_is_named(value: object, sentence: str) -> None:
    with pytest.raises(Unpackable, match=sentence):
        unpack(value)


@pytest.mark.attack_class(15)
def test_a_text_that_unpacks_to_more_than_a_status_holds_is_refused() -> None:
    bomb = text(json.dumps({"counts": " " * 100 * packing.MAX_BYTES}).encode())
    assert len(bomb) < packing.MAX_PACKED
    with pytest.raises(Unpackable, match="very large"):
        unpack(bomb)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"counts": [1], "trace": ["x" * packing.MAX_BYTES]}, {"counts": [1]}),
        ({"counts": ["x" * packing.MAX_BYTES], "trace": [1]}, {}),
    ],
)
def test_packed_fields_that_are_too_large_are_left_out_last_first(value: dict[str, Any], kept: dict[str, Any]) -> None:
    written = with_packed(value, FIELDS)
    assert with_unpacked(written, FIELDS) == kept
