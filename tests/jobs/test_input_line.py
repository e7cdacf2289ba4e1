"""Lines of an input file: what is valid is sent as it was written, what is not is named by its field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_jobs.dispatch.validation import MAX_ERRORS, BatchReader
from slipway_jobs.input_line import InvalidLine, is_endpoint, read_line
from slipway_jobs.serving.refusal import JobsRefusal
from slipway_jobs.serving.upload import LineSplitter
from tests.jobs.world import chat

CHAT = "/v1/chat/completions"


def test_a_body_is_sent_as_it_was_written() -> None:
    body = b'{ "model" : "m", "big": 12345678901234567890123, "f": 1.50e3, "twice": 1, "twice": 2 }'
    line = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": ' + body + b"}\n"
    assert read_line(line, CHAT).body == body


def test_a_byte_order_mark_before_the_first_line_is_skipped() -> None:
    line = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m"}}\n'
    assert read_line(b"\xef\xbb\xbf" + line, CHAT) == read_line(line, CHAT)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/score", "/classify"])
def test_a_batch_may_be_for_a_reranker(path: str) -> None:
    line = b'{"custom_id": "a", "method": "POST", "url": "%s", "body": {"model": "m", "query": "a"}}' % path.encode()
    assert is_endpoint(path) and read_line(line, path).custom_id == "a"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"custom_id": ""}, "custom_id"),
        ({"custom_id": 7}, "custom_id"),
        ({"custom_id": "x" * 513}, "custom_id"),
        ({"custom_id": "a\0"}, "custom_id"),
        ({"method": "GET"}, "method"),
        ({"url": "/v1/embeddings"}, "url"),
        ({"url": None}, "url"),
        ({"body": []}, "body"),
        ({"body": {}}, "body.model"),
        ({"body": {"model": 1}}, "body.model"),
        ({"body": {"model": "m", "stream": True}}, "body.stream"),
        ({"body": {"model": "m", "stream": "no"}}, "body.stream"),
        ({"more": 1}, "more"),
    ],
)
def test_an_invalid_field_is_named(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidLine) as error:
        read_line(json.dumps(chat(1) | changes).encode(), CHAT)
    assert error.value.param == param


def test_half_a_character_is_no_text() -> None:
    with pytest.raises(InvalidLine) as error:
        read_line(json.dumps(chat(1) | {"custom_id": "\ud800"}).encode(), CHAT)
    assert error.value.code == "invalid_json_line"


@pytest.mark.parametrize("field", ["custom_id", "method", "url", "body"])
def test_a_missing_field_is_named(field: str) -> None:
    line = {name: value for name, value in chat(1).items() if name != field}
    with pytest.raises(InvalidLine) as error:
        read_line(json.dumps(line).encode(), CHAT)
    assert (error.value.code, error.value.param) == ("missing_field", field)


@given(st.one_of(st.binary(max_size=80), st.recursive(st.none() | st.text(), st.lists).map(json.dumps).map(str.encode)))
def test_whatever_a_line_holds_it_is_read_or_refused(data: bytes) -> None:
    with pytest.raises(InvalidLine):
        read_line(data, CHAT)


@pytest.mark.parametrize(
    ("path", "valid"),
    [
        (CHAT, True),
        ("/api/v1/predict", True),
        ("/v2/models/iris/infer", True),
        ("/v2/models/team-a/iris/infer", True),
        ("/v2/models/iris/versions/2/infer", True),
        ("/v1/batches", False),
        ("/v1/files", False),
        ("/v2/models/../../v1/files/infer", False),
        ("/v2/models/a//infer", False),
        ("/v2/models/a b/infer", False),
        ("/v2/models/a?x=/infer", False),
        ("/v2/models/a%2e/infer", False),
        ("http://host/v2/models/a/infer", False),
        ("/v2/models/a/infer\n", False),
    ],
)
def test_endpoints_are_those_of_inference(path: str, *, valid: bool) -> None:
    assert is_endpoint(path) is valid


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_a_file_is_cut_at_line_ends_wherever_its_chunks_end(chunks: list[bytes]) -> None:
    splitter = LineSplitter(1000)
    lines = [line for chunk in chunks for line in splitter.add(chunk)] + splitter.end()
    assert lines == b"".join(chunks).splitlines(keepends=True) or b"\r" in b"".join(chunks)
    assert b"".join(lines) == b"".join(chunks)
    assert all(line.count(b"\n") <= 1 for line in lines)


def test_a_line_without_an_end_is_refused_before_it_is_held() -> None:
    splitter = LineSplitter(10)
    with pytest.raises(JobsRefusal, match="more than 10 bytes"):
        for _ in range(100):
            splitter.add(b"x")
    assert len(splitter.rest) <= 11


def test_a_file_of_wrong_lines_has_a_bounded_list_of_errors() -> None:
    reader = BatchReader(CHAT, 10_000)
    assert reader.read([(n, b"wrong\n") for n in range(5000)]) == []
    assert len(reader.errors) == MAX_ERRORS and reader.is_over


def test_more_requests_than_a_batch_may_have_are_refused_by_their_line() -> None:
    reader = BatchReader(CHAT, 2)
    reader.read([(n, json.dumps(chat(n)).encode()) for n in range(3)])
    assert [(error["line"], error["code"]) for error in reader.errors] == [(3, "too_many_requests")]
