"""Tokens kept of broken streams: found only by the same request, for a limited time, within the memory limit."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from multidict import CIMultiDict

from slipway_gateway.forwarding.resume_memory import ENTRY_BYTES, ResumeMemory, stream_key
from slipway_gateway.limits.budget import MemoryBudget
from slipway_gateway.upstream.exchange import UpstreamRequest


def roomy() -> MemoryBudget:
    return MemoryBudget(1 << 30, 1 << 30, lambda: 0.0)


STREAM = "1f-674f0000-" + "a" * 32
CALL = UpstreamRequest(
    "chat", "key", "/v1/completions?x=1", CIMultiDict({"X-Slipway-Tenant": "0" * 32}), b'{"model":"chat"}'
)


def test_tokens_are_found_only_for_the_same_request() -> None:
    same = replace(CALL, key="other", path_qs="/v1/completions", holder="00aa")
    assert stream_key(STREAM, same) == stream_key(STREAM, CALL)
    others = [
        replace(CALL, body=b'{"model":"chat" }'),
        replace(CALL, path_qs="/v1/chat/completions"),
        replace(CALL, headers=CIMultiDict()),
    ]
    assert stream_key(STREAM, CALL) not in {stream_key(STREAM, other) for other in others}
    assert stream_key(STREAM[:-1] + "b", CALL) != stream_key(STREAM, CALL)


def test_entries_expire_and_keep_the_latest_tokens() -> None:
    now = [0.0]
    memory = ResumeMemory(10_000, 60.0, lambda: now[0], roomy())
    memory.keep(b"a", b"1,2,", "client")
    now[0] = 30.0
    memory.keep(b"b", b"3,", "client")
    memory.keep(b"a", b"1,2,5,", "client")
    now[0] = 89.0
    assert (memory.find(b"a"), memory.find(b"a"), memory.find(b"b")) == (b"1,2,5,", b"1,2,5,", b"3,")
    now[0] = 90.0
    assert (memory.find(b"a"), memory.find(b"b"), memory.size_bytes) == (b"", b"", 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 900)), max_size=30))
def test_memory_is_bounded_and_the_oldest_entry_is_evicted(kept: list[tuple[int, int]]) -> None:
    memory, order = ResumeMemory(2000, 60.0, lambda: 0.0, roomy()), []
    for name, size in kept:
        memory.keep(bytes([name]), b"1" * size, "client")
        order = [item for item in order if item[0] != name] + [(name, size)]
        while sum(ENTRY_BYTES + size for _, size in order) > 2000:
            order.pop(0)
        assert memory.size_bytes == sum(ENTRY_BYTES + size for _, size in order) <= 2000
    assert {name: len(memory.find(bytes([name]))) for name, _ in order} == dict(order)
