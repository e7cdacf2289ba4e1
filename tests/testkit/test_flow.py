"""Requests at a fixed rate: what is sent, and what a client makes of the answers."""

import json
from collections import Counter

import pytest

from testkit.load.client import PROMPTS
from testkit.load.flow import Shape, ending

CHUNK = {"choices": [{"index": 0, "delta": {"content": "And "}}]}
END = {"choices": [{"index": 0, "delta": {"content": "it"}, "finish_reason": "stop"}]}


def events(*parts: dict[str, object]) -> bytes:
    return b"".join(b": 1.5 7\ndata: " + json.dumps(part).encode() + b"\n\n" for part in parts) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("part", [0.0, 0.02, 0.25, 1.0])
def test_parts_of_the_requests_have_their_size(part: float) -> None:
    bodies = [Shape(streamed=part, marker="~", marked=part).body("m", number) for number in range(800)]
    marked = [body for body in bodies if "~" in body["messages"][0]["content"]]
    assert len(marked) == 800 * part
    assert sum(body["stream"] for body in bodies) == 800 * part


def test_every_prompt_streams_as_often_as_every_other() -> None:
    bodies = [Shape(streamed=0.25).body("m", number) for number in range(80)]
    streamed = Counter(body["messages"][0]["content"] for body in bodies if body["stream"])
    assert set(streamed) == set(PROMPTS) and len(set(streamed.values())) == 1


def test_the_length_is_left_to_the_server_where_it_is_to_be() -> None:
    assert Shape(max_tokens=7).body("m", 0)["max_tokens"] == 7
    assert "max_tokens" not in Shape(max_tokens=None).body("m", 0)


def test_a_whole_stream_is_read() -> None:
    ended = ending(5.0, "r1", 200, events(CHUNK, END))
    assert (ended.revision, ended.trouble, ended.finish, ended.text) == ("r1", "", "stop", "And it")


def test_a_whole_answer_is_read() -> None:
    body = {"choices": [{"message": {"content": "Amen"}, "finish_reason": "length"}]}
    ended = ending(5.0, "r1", 200, json.dumps(body).encode())
    assert (ended.trouble, ended.finish, ended.text) == ("", "length", "Amen")


@pytest.mark.parametrize(
    ("status", "body", "trouble"),
    [
        (500, b'{"error": {}}', "500: "),
        (200, events(CHUNK), "no finish_reason"),
        (200, events(CHUNK, {"error": {"code": "server_lost"}}), "server_lost"),
    ],
)
def test_anything_else_is_trouble(status: int, body: bytes, trouble: str) -> None:
    assert trouble in ending(5.0, "r1", status, body).trouble
