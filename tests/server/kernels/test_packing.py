"""Steps as arrays: one buffer, padding that changes no sequence, and the sizes that are captured."""

import numpy
import pytest

from slipway_server.kernels.packing import ALIGNED, Layout, Packed, padded, size_for, sizes

BLOCK = 32


def a_step(counts: list[int], starts: list[int], sampled: list[int], width: int = 3) -> Packed:
    """Spans of so many tokens; sequence n has the blocks from n * width on."""
    spans = len(counts)
    block_tables = numpy.arange(spans * width, dtype=numpy.int32).reshape(spans, width)
    positions = numpy.concatenate([numpy.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
    owner = numpy.repeat(numpy.arange(spans), counts)
    return Packed(
        ids=numpy.arange(100, 100 + sum(counts)),
        positions=positions.astype(numpy.int32),
        slot_mapping=(block_tables[owner, positions // BLOCK] * BLOCK + positions % BLOCK).astype(numpy.int32),
        first=(numpy.cumsum(counts) - counts).astype(numpy.int32),
        counts=numpy.array(counts, numpy.int32),
        starts=numpy.array(starts, numpy.int32),
        block_tables=block_tables,
        rows=numpy.array(sampled),
    )


def test_only_steps_with_one_sampled_token_each_are_decodes() -> None:
    assert a_step([1, 1], [5, 40], [0, 1]).decodes_only
    assert not a_step([1, 1], [5, 40], [0]).decodes_only, "one of them is part of a prompt"
    assert not a_step([1, 4], [5, 40], [0, 4]).decodes_only
    assert [a_step(counts, [0] * len(counts), []).num_decodes for counts in ([1, 1], [1, 1, 3, 1], [2, 1])] == [2, 2, 0]


def test_fields_are_aligned_in_one_buffer() -> None:
    step = a_step([1, 4, 2], [5, 40, 0], [0, 4])
    layout = Layout.of(step)
    buffer = numpy.full(layout.ints, -1, numpy.int32)
    layout.fill(buffer, step)
    seen = {name: buffer[part].reshape(shape) for name, part, shape in layout.slices()}
    assert all(numpy.array_equal(seen[name], values) for name, values in step.fields())
    assert set(seen) == {name for name, _ in step.fields()}
    assert all(part.start % ALIGNED == 0 for _, part, _ in layout.slices())
    ends = [part.stop for _, part, _ in layout.slices()]
    starts = [part.start for _, part, _ in layout.slices()]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False)), "fields overlap"


def test_layouts_of_equal_shapes_are_equal() -> None:
    one = padded(a_step([1], [5], [0]), 4, 6, 99, BLOCK)
    other = padded(a_step([1, 1, 1], [50, 6, 7], [0, 1, 2]), 4, 6, 99, BLOCK)
    assert Layout.of(one) == Layout.of(other)


def test_padding_keeps_the_rows_and_writes_to_no_block_of_a_sequence() -> None:
    step = a_step([1, 1, 1], [5, 40, 0], [0, 1, 2])
    whole, scratch = padded(step, 8, 5, 99, BLOCK), 99
    for name, values in step.fields():
        kept = getattr(whole, name)[:3]
        assert numpy.array_equal(kept[:, :3] if name == "block_tables" else kept, values), name
    assert whole.decodes_only and whole.num_decodes == 8
    assert (whole.block_tables[3:] == scratch).all() and (whole.block_tables[:3, 3:] == scratch).all()
    assert (whole.slot_mapping[3:] // BLOCK == scratch).all() and (whole.slot_mapping[:3] // BLOCK != scratch).all()
    # What they read is what they wrote: position 0 of their only block.
    assert (
        (whole.starts[3:] == 0).all()
        and (whole.positions[3:] == 0).all()
        and (whole.slot_mapping[3:] % BLOCK == 0).all()
    )


@pytest.mark.parametrize("most", [1, 3, 8, 31, 32, 100, 256, 1000])
def test_captured_sizes_have_room_for_all_and_waste_little(most: int) -> None:
    captured = sizes(most)
    assert captured == tuple(sorted(set(captured))) and captured[-1] == most
    assert len(captured) <= 8 + 4 * max(1, most.bit_length() - 5)
    for count in range(1, most + 1):
        size = size_for(count, captured)
        assert size >= count and (size <= max(8, 2 * count) if count < 16 else size <= count * 1.5)
        assert count <= 32 or size <= count * 1.25


def test_the_first_captured_sizes() -> None:
    assert sizes(256) == (1, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
