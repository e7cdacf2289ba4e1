"""A chain of lines: whatever is done to one of them shows at that line."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_contracts.hash_chain import FIRST_PREV, MAX_LINE_BYTES, BrokenChain, Chain, digest, link, read_line


def made(count: int = 5) -> list[bytes]:
    lines, prev = [], FIRST_PREV
    for seq in range(1, count + 1):
        lines.append(link({"n": f"{seq}\n\u2028\ud800"}, seq, prev))
        prev = digest(lines[-1])
    return [line + b"\n" for line in lines]


def followed(data: bytes) -> Chain:
    chain, file = Chain(), io.BytesIO(data)
    while line := read_line(file):
        chain.follow(line)
    return chain


def test_a_chain_is_followed_to_its_last_line() -> None:
    lines = made()
    chain = followed(b"".join(lines))
    assert (chain.seq, chain.head) == (5, digest(lines[-1][:-1]))
    assert all(line.isascii() and line.count(b"\n") == 1 for line in lines)
    assert followed(b"").seq == 0


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: [*lines[:2], lines[2].replace(b'"n":"3', b'"n":"4'), *lines[3:]], 4),
        (lambda lines: [*lines[:2], *lines[3:]], 3),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: lines[1:], 1),
        (lambda lines: [*lines[:3], lines[3][:-1]], 4),
        (lambda lines: [*lines[:2], b"\n", *lines[2:]], 3),
        (lambda lines: [*lines[:2], b"[" * 5000 + b"\n", *lines[2:]], 3),
        (lambda lines: [*lines, b"x" * (MAX_LINE_BYTES + 10) + b"\n"], 6),
        (lambda lines: [json.dumps({"seq": True, "prev": FIRST_PREV}).encode() + b"\n"], 1),
    ],
)
def test_a_change_shows_at_the_first_line_that_does_not_fit(change, line) -> None:
    with pytest.raises(BrokenChain) as raised:
        followed(b"".join(change(made())))
    assert raised.value.line == line


@given(st.integers(0, 4), st.data())
def test_any_changed_byte_shows(number: int, data: st.DataObject) -> None:
    lines = made()
    at = data.draw(st.integers(0, len(lines[number]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda one: one != lines[number][at]))
    lines[number] = lines[number][:at] + bytes([byte]) + lines[number][at + 1 :]
    try:
        chain = followed(b"".join(lines))
    except BrokenChain:
        return
    # Only the last line has none behind it that names its digest.
    assert number == 4 and chain.head != followed(b"".join(made())).head


def test_a_line_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        link({"text": "x" * MAX_LINE_BYTES}, 1, FIRST_PREV)
