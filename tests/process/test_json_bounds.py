"""The bound of JSON that becomes objects: exact for whatever a decoder takes, and fast for whatever is sent."""

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_process import json_bounds
from slipway_process.json_bounds import MAX_NUMBERS, MAX_OBJECTS, SLICE_BYTES, TooManyValues

MANY = 100_000
BODY_BYTES = 8 << 20
texts = st.text(st.sampled_from('a"\\[{,:]}\né'), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


def is_within(data: bytes, max_objects: int = MAX_OBJECTS, max_numbers: int = MAX_NUMBERS) -> bool:
    try:
        json_bounds.check(data, max_objects, max_numbers)
    except TooManyValues:
        return False
    return True


def objects_of(value: Any) -> int:
    """Lists, objects and texts."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(objects_of, value.values()))
    return 1 + sum(map(objects_of, value)) if isinstance(value, list) else int(isinstance(value, str))


def commas_of(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return max(0, len(value) - 1) + sum(map(commas_of, value.values() if isinstance(value, dict) else value))


@given(values)
def test_what_a_decoder_would_make_is_counted_exactly(value: Any) -> None:
    data = msgspec.json.encode(value)
    objects, commas = objects_of(value), commas_of(value)
    assert is_within(data, objects, MANY) and not is_within(data, objects - 1, MANY)
    assert is_within(data, MANY, commas) and not is_within(data, MANY, commas - 1)


@given(values, st.integers(1, 9))
def test_a_slice_may_end_anywhere(value: Any, slice_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bounds, "SLICE_BYTES", slice_bytes)
        test_what_a_decoder_would_make_is_counted_exactly.hypothesis.inner_test(value)


def test_others_may_run_after_each_slice() -> None:
    assert len(list(json_bounds.slices(b" " * (3 * SLICE_BYTES - 1)))) == 3


@given(values, st.binary(max_size=20))
def test_what_follows_an_error_hides_nothing_that_is_decoded_before_it(value: Any, rest: bytes) -> None:
    data = b"[" + msgspec.json.encode(value) + b"," + rest
    assert not is_within(data, objects_of(value), MANY)


def repeated(piece: bytes) -> bytes:
    return b'{"x":[' + piece * ((BODY_BYTES - 100) // len(piece)) + b"0]}"


HOSTILE = {
    "lists": repeated(b"[],"),
    "objects": repeated(b'{"":0},'),
    "names": b"{" + b",".join(b'"%07x":0' % n for n in range(BODY_BYTES // 12)) + b"}",
    "texts": repeated(b'"ab",'),
    "numbers": repeated(b"1,"),
    "no numbers": repeated(b","),
}


@pytest.mark.finding("F5")
@pytest.mark.parametrize("name", HOSTILE)
def test_json_that_makes_hundreds_of_megabytes_is_refused(name: str) -> None:
    with pytest.raises(TooManyValues, match="lists, objects and texts, or 524288 numbers"):
        json_bounds.check(HOSTILE[name])


# Long texts that have everything that is counted, with as many objects as are allowed.
ALLOWED = {
    "brackets": b'["' + b"[{,:" * (BODY_BYTES // 5) + b'"]',
    "quotes": b"[" + b'"",' * (MAX_OBJECTS - 3) + b'"' + rb"\"" * (1 << 20) + b"[," * (2 << 20) + b'"]',
    "backslashes": b"[" + b'"",' * (MAX_OBJECTS - 3) + b'"' + rb"\\" * (1 << 19) + b"[," * (3 << 20) + b'"]',
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_within_a_text_is_not_counted(name: str) -> None:
    assert is_within(ALLOWED[name]) and msgspec.json.decode(ALLOWED[name])


@pytest.mark.finding("F5")
@pytest.mark.parametrize("name", [*HOSTILE, *ALLOWED, "no JSON"])
def test_counting_takes_no_longer_than_a_few_looks_at_each_byte(name: str) -> None:
    """A regular expression that removes texts took two hundred."""
    data = (HOSTILE | ALLOWED | {"no JSON": rb"\"" * (BODY_BYTES // 2)})[name]
    looks = min(_seconds(lambda: data.count(b"~")) for _ in range(5)) / len(data)
    assert min(_seconds(lambda: is_within(data)) for _ in range(5)) / len(data) < 60 * looks


def _seconds(call: Any) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began
