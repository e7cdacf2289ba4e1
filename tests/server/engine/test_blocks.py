"""The books of the KV cache: nothing is lost, held twice or shared wrongly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_server.engine.blocks import Blocks, Digests

KEY = b"0" * 32


def chain(tokens: list[int], **fields: str) -> list[bytes]:
    digests = Digests(4, KEY)
    return list(digests.chain(digests.root(**fields), tokens))


def test_equal_beginnings_have_equal_digests_and_only_full_blocks_have_one() -> None:
    assert chain([1, 2, 3, 4, 5, 6, 7, 8, 9]) == chain([1, 2, 3, 4, 5, 6, 7, 8])
    assert chain([1, 2, 3, 4, 5, 6, 7, 8])[:1] == chain([1, 2, 3, 4, 9, 9, 9, 9])[:1]
    assert chain([1, 2, 3, 4, 5, 6, 7, 8])[1] != chain([1, 2, 3, 4, 9, 9, 9, 9])[1]
    # The same second block after another first one is another text.
    assert chain([9, 2, 3, 4, 5, 6, 7, 8])[1] != chain([1, 2, 3, 4, 5, 6, 7, 8])[1]
    assert chain([1, 2, 3]) == []


def test_tenants_adapters_and_processes_share_nothing() -> None:
    text = [1, 2, 3, 4]
    variants = [{"tenant": "a"}, {"tenant": "b"}, {"adapter": "a"}, {"tenant": "a", "adapter": ""}, {"tenant": ""}]
    assert len({chain(text, **fields)[0] for fields in variants}) == len(variants)
    # Fields are told apart by their lengths: nothing can be made to look like another field.
    assert chain(text, a="b", c="d") != chain(text, a="bc", d="")
    digests = [Digests(4) for _ in range(2)]
    assert len({next(iter(d.chain(d.root(), text))) for d in digests}) == 2


def test_the_least_recently_used_text_is_forgotten_end_first() -> None:
    blocks = Blocks(3)
    held = [blocks.take() for _ in range(3)]
    for block, name in zip(held, (b"1", b"2", b"3"), strict=True):
        blocks.name(block, name)
    blocks.release(held)
    assert blocks.available == 3 and blocks.find([b"1", b"2", b"3"]) == held
    assert blocks.take() == held[2]
    assert blocks.find([b"1", b"2", b"3"]) == held[:2]
    blocks.hold(held[:1])
    assert blocks.take() == held[1]
    assert blocks.available == 0
    with pytest.raises(IndexError):
        blocks.take()
    blocks.check([[held[2]], [held[0]], [held[1]]])


def test_a_spoiled_block_is_not_shared_any_more() -> None:
    blocks = Blocks(2)
    block = blocks.take()
    blocks.name(block, b"1")
    blocks.forget([block])
    assert blocks.find([b"1"]) == []
    blocks.release([block])
    blocks.check([])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=80), st.integers(1, 6))
def test_the_books_balance(actions: list[tuple[int, int]], count: int) -> None:
    """Actions: take, name, share a known beginning, release; each with a number that chooses."""
    blocks, held = Blocks(count), list[list[int]]()
    for action, number in actions:
        if action == 0 and blocks.available:
            held.append([blocks.take()])
        elif action == 1 and held:
            blocks.name(held[number % len(held)][0], bytes([number]))
        elif action == 2:
            found = blocks.find([bytes([number])])
            blocks.hold(found)
            held += [found] if found else []
        elif action == 3 and held:
            blocks.release(held.pop(number % len(held)))
        blocks.check(held)
    assert blocks.held == len({block for each in held for block in each})
