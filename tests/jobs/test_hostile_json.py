"""JSON of strangers in the largest lines, bodies and responses: read without objects of what is not needed."""

import asyncio
import json
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from slipway_jobs.dispatch.gateway_calls import _body
from slipway_jobs.input_line import read_line
from slipway_jobs.serving.fields import MAX_BODY_BYTES, list_of, metadata_of, small_of, text_of
from slipway_jobs.serving.refusal import JobsRefusal
from slipway_process.json_bounds import MAX_NUMBERS
from tests.jobs.world import chat

CHAT = "/v1/chat/completions"
SIZE_BYTES = 4 << 20
PIECES = {"lists": b"[],", "objects": b'{"":0},', "numbers": b"1.5,", "texts": b'"ab",'}


def filled(piece: bytes, size_bytes: int = SIZE_BYTES) -> bytes:
    return b"[" + piece * (size_bytes // len(piece)) + b"0]"


def peak_bytes(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.finding("F12")
@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_a_line_is_read_without_objects_of_its_body(piece: bytes) -> None:
    """A line of 4 MB of lists took 1.1 s and 86 MiB."""
    start = json.dumps(chat(1)).encode().replace(b'"model"', b'"x": ' + filled(piece) + b', "model"')
    assert peak_bytes(lambda: read_line(start, CHAT)) < 4 * len(start)


@pytest.mark.finding("F12")
@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_a_response_is_kept_without_objects_of_it(piece: bytes) -> None:
    data = filled(piece)
    assert peak_bytes(lambda: asyncio.run(_body(data))) < 3 * len(data)
    assert asyncio.run(_body(data)) == msgspec.Raw(data)


def test_a_response_that_is_no_text_is_kept_as_one() -> None:
    for data in (b'{"a": "\xff"}', b'{"a": "\\ud800"}', b"[1,]", b""):
        assert asyncio.run(_body(data)) == data.decode(errors="replace")


@pytest.mark.finding("F12")
@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
async def test_a_list_with_more_items_than_may_be_looked_at_is_refused_before(piece: bytes) -> None:
    data = msgspec.Raw(filled(piece, MAX_BODY_BYTES))
    tracemalloc.start()
    with pytest.raises(JobsRefusal, match="upload a file instead"):
        await list_of({"inputs": data}, "inputs", 50_000)
    assert tracemalloc.get_traced_memory()[1] < 5 * MAX_BODY_BYTES
    tracemalloc.stop()
    with pytest.raises(JobsRefusal, match="inputs must be a list of 1 to 50000 inputs"):
        await list_of({"inputs": msgspec.Raw(filled(b"0,", 2 * MAX_NUMBERS - 2))}, "inputs", 50_000)


async def test_items_of_a_list_stay_as_they_were_written() -> None:
    given = msgspec.Raw(b'[{"a" : 1.50}, "x", [1 ,2], null]')
    assert [bytes(one) for one in await list_of({"x": given}, "x", 4)] == [b'{"a" : 1.50}', b'"x"', b"[1 ,2]", b"null"]
    for wrong in (b"[]", b"{}", b'"x"', b"[1,2,3,4,5]"):
        with pytest.raises(JobsRefusal, match="x must be a list of 1 to 4 x"):
            await list_of({"x": msgspec.Raw(wrong)}, "x", 4)


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_small_fields_are_refused_by_their_size(piece: bytes) -> None:
    fields = {"x": msgspec.Raw(filled(piece)), "metadata": msgspec.Raw(b'{"a":' + filled(piece) + b"}")}
    for read in (lambda: text_of(fields, "x"), lambda: small_of(fields, "x"), lambda: metadata_of(fields)):

        def refused(read: Callable[[], object] = read) -> None:
            with pytest.raises(JobsRefusal):
                read()

        assert peak_bytes(refused) < 2 * SIZE_BYTES


def test_metadata_may_be_written_with_escapes() -> None:
    metadata = {f"{n:064}": "\N{GRINNING FACE}" * 512 for n in range(16)}
    assert metadata_of({"metadata": msgspec.Raw(json.dumps(metadata).encode())}) == json.dumps(
        metadata, ensure_ascii=False, separators=(",", ":")
    )
