"""Variants of bytes: what a stranger might send in their place."""

from collections.abc import Callable, Sequence
from random import Random


def varying(tokens: Sequence[bytes]) -> Callable[[bytes, Random], bytes]:
    """A function that changes bytes in one to three places. `tokens`: what it may put in."""

    def vary(data: bytes, random: Random) -> bytes:
        for _ in range(random.randint(1, 3)):
            data = _change(data, random, tokens)
        return data

    return vary


def _change(data: bytes, random: Random, tokens: Sequence[bytes]) -> bytes:
    begin = random.randint(0, len(data))
    end = min(len(data), begin + random.choice((0, 0, 1, 1, 2, 5, 30)))
    kind = random.randrange(5)
    if kind == 0:
        return data[:begin] + data[end:]
    if kind == 1:
        return data[:begin] + bytes([random.randrange(256)]) + data[end:]
    if kind == 2:
        return data[:end] + data[begin:]
    return data[:begin] + random.choice(tokens) + data[end:]


def cut_anywhere(data: bytes, random: Random) -> list[bytes]:
    """The bytes in pieces of random sizes."""
    pieces, at = [], 0
    while at < len(data):
        size = random.choice((1, 1, 2, 3, 7, 40, 1000))
        pieces.append(data[at : at + size])
        at += size
    return pieces
