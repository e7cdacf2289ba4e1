"""The block manager of the KV cache: no block is lost, allocated twice or shared wrongly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_server.engine.request import Request, SamplingParams, Sequence
from slipway_server.engine.scheduling.block_hash import BlockHasher
from slipway_server.engine.scheduling.block_manager import BlockManager

KEY = b"0" * 32
BLOCK = 4


def hashes(tokens: list[int], *, tenant: str = "", scope: str = "") -> list[bytes]:
    hasher = BlockHasher(BLOCK, scope=scope, key=KEY)
    return list(hasher.hash_blocks(hasher.root_hash(tenant), tokens))


def make_manager(num_blocks: int) -> BlockManager:
    return BlockManager(num_blocks, BlockHasher(BLOCK, key=KEY), block_tokens=BLOCK)


def make_sequence(tokens: range) -> Sequence:
    return Sequence(Request(str(tokens), tuple(tokens), SamplingParams(1)))


def run(manager: BlockManager, tokens: range) -> Sequence:
    """A sequence with blocks for all its tokens, which are computed."""
    sequence = make_sequence(tokens)
    manager.allocate(sequence, manager.match_prefix(sequence))
    manager.append(sequence, sequence.length)
    sequence.num_computed_tokens = sequence.length
    manager.cache_full_blocks(sequence)
    return sequence


def test_equal_prefixes_have_equal_hashes_and_only_full_blocks_have_one() -> None:
    assert hashes([1, 2, 3, 4, 5, 6, 7, 8, 9]) == hashes([1, 2, 3, 4, 5, 6, 7, 8])
    assert hashes([1, 2, 3, 4, 5, 6, 7, 8])[:1] == hashes([1, 2, 3, 4, 9, 9, 9, 9])[:1]
    assert hashes([1, 2, 3, 4, 5, 6, 7, 8])[1] != hashes([1, 2, 3, 4, 9, 9, 9, 9])[1]
    # The same second block after another first block.
    assert hashes([9, 2, 3, 4, 5, 6, 7, 8])[1] != hashes([1, 2, 3, 4, 5, 6, 7, 8])[1]
    assert hashes([1, 2, 3]) == []


def test_tenants_scopes_and_processes_share_no_hash() -> None:
    text = [1, 2, 3, 4]
    variants = [{"tenant": "a"}, {"tenant": "b"}, {"scope": "a"}, {"tenant": "a", "scope": "a"}, {"tenant": ""}]
    assert len({hashes(text, **fields)[0] for fields in variants}) == len(variants)
    # Fields are encoded with their lengths: the end of one cannot pass for the beginning of the next.
    assert hashes(text, scope="b", tenant="c") != hashes(text, scope="bc", tenant="")
    hashers = [BlockHasher(BLOCK, key=bytes([number]) * 32) for number in range(2)]
    assert len({next(iter(hasher.hash_blocks(hasher.root_hash(""), text))) for hasher in hashers}) == 2


def test_the_least_recently_used_blocks_are_evicted_and_of_a_prefix_the_last_one_first() -> None:
    manager = make_manager(3)
    first = run(manager, range(12))
    blocks = list(first.block_table)
    manager.free(first)
    # One token more than the cached ones, so that all of them can match.
    assert manager.num_free_blocks == 3 and manager.match_prefix(make_sequence(range(13))) == blocks
    other = run(manager, range(100, 104))
    assert other.block_table == [blocks[2]] and manager.evictions == 1
    assert manager.match_prefix(make_sequence(range(13))) == blocks[:2]
    again = make_sequence(range(8))
    manager.allocate(again, manager.match_prefix(again))
    assert again.block_table == blocks[:1] and again.num_computed_tokens == BLOCK
    manager.append(again, 8)
    assert again.block_table == blocks[:2] and manager.num_free_blocks == 0 and manager.evictions == 2
    assert manager.can_append(again, 8) and not manager.can_append(again, 9)
    with pytest.raises(IndexError):
        manager.append(again, 9)
    manager.check([other, again])


def test_an_allocation_counts_the_prefix_once_and_what_preempted_sequences_free() -> None:
    manager = make_manager(4)
    running = run(manager, range(12))
    longer = make_sequence(range(16))
    prefix = manager.match_prefix(longer)
    assert prefix == running.block_table and manager.can_allocate(longer, prefix)
    assert not manager.can_allocate(longer, prefix, reserved=1)
    other = make_sequence(range(100, 108))
    assert not manager.can_allocate(other, [])
    assert manager.can_allocate(other, [], preempted=[running])
    # The freed blocks are its own prefix: they are no additional space.
    much_longer = make_sequence(range(20))
    assert not manager.can_allocate(much_longer, manager.match_prefix(much_longer), preempted=[running])


def test_each_allocation_has_its_own_number_so_that_a_runner_notices_it() -> None:
    manager = make_manager(4)
    sequence = run(manager, range(6))
    first = sequence.allocation
    manager.append(sequence, 12)
    assert sequence.allocation == first
    manager.free(sequence)
    manager.allocate(sequence, manager.match_prefix(sequence))
    assert sequence.allocation != first
    assert run(manager, range(200, 204)).allocation not in (first, sequence.allocation)


def test_an_invalid_block_is_not_reused_and_is_cleared_once() -> None:
    manager = make_manager(3)
    sequence = run(manager, range(9))
    kept, invalid = sequence.block_table[0], sequence.block_table[1:]
    manager.invalidate(sequence, from_token=5)
    assert manager.match_prefix(make_sequence(range(9))) == [kept]
    assert manager.take_blocks_to_clear() == []
    manager.free(sequence)
    assert sorted(manager.take_blocks_to_clear()) == sorted(invalid) and manager.take_blocks_to_clear() == []
    manager.check([])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=80), st.integers(1, 6))
def test_the_bookkeeping_stays_consistent(actions: list[tuple[int, int]], num_blocks: int) -> None:
    """Actions: run a sequence, append to one, invalidate one, free one; each with a number that chooses."""
    manager, live = make_manager(num_blocks), list[Sequence]()
    for action, number in actions:
        chosen = live[number % len(live)] if live else None
        if action == 0:
            sequence = make_sequence(range(number // 4, number // 4 + 3 + number))
            if manager.can_allocate(sequence, manager.match_prefix(sequence)):
                live.append(run(manager, range(number // 4, number // 4 + 3 + number)))
        elif action == 1 and chosen and manager.can_append(chosen, chosen.length + number):
            manager.append(chosen, chosen.length + number)
        elif action == 2 and chosen:
            manager.invalidate(chosen)
        elif action == 3 and chosen:
            live.remove(chosen)
            manager.free(chosen)
        manager.check(live)
    referenced = len({block for sequence in live for block in sequence.block_table})
    assert manager.num_free_blocks == num_blocks - referenced
    assert manager.usage == referenced / num_blocks
