"""What the engine sends the process of grammars, and when: one message for a step, within its limits."""

from typing import Any

import pytest

from slipway_server.engine.grammars.masks import Masks
from slipway_server.engine.grammars.messages import (
    PACKET_BYTES,
    SEQUENCES_PER_ADVANCE,
    TOKENS_PER_ADVANCE,
    Advance,
    Advances,
    Drop,
    FromGrammars,
    Hello,
    Masked,
    MaskedRows,
    encode,
)
from slipway_server.engine.request import Grammar, Request, SamplingParams, ScheduledSequence, Sequence

GRAMMAR = Grammar("regex", "a*")


class Silent:
    """In place of the process: what it was sent, and what it is made to send."""

    generation, serves, started = 1, True, True

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.answers: list[FromGrammars] = []

    def send(self, message: Any) -> None:
        assert len(encode(message)) <= PACKET_BYTES
        self.sent.append(message)

    def receive(self, timeout_s: float = 0.0) -> list[FromGrammars]:
        answers, self.answers = self.answers, []
        return answers


def batch(count: int, output: int = 0) -> list[ScheduledSequence]:
    params = SamplingParams(100_000, grammar=GRAMMAR)
    made = [Sequence(Request(f"{number}", (1,), params), output=[2**31] * output) for number in range(count)]
    return [ScheduledSequence(one, one.length - 1, one.length, samples=True) for one in made]


@pytest.fixture
def process() -> Silent:
    return Silent()


def masks_of(process: Silent) -> Masks:
    return Masks(process, rows=2000)  # type: ignore[arg-type]


def advances(process: Silent) -> list[Advance]:
    return [one for message in process.sent if isinstance(message, Advances) for one in message.sequences]


def test_a_step_is_one_message_and_is_sent_once(process: Silent) -> None:
    masks, items = masks_of(process), batch(32)
    masks.begin(items)
    masks.begin(items)  # before the step, when they were begun after the one before
    assert len(process.sent) == 1 and len(advances(process)) == 32
    process.answers = [MaskedRows([Masked(one.sequence, 0) for one in advances(process)])]
    rows = [mask.row for mask in masks.collect(items).values()]
    assert sorted(rows) == sorted({one.row for one in advances(process)})
    masks.begin(items)  # tried again in parts: the masks are there
    assert len(process.sent) == 1
    items[3].sequence.output.append(9)
    masks.begin(items)
    assert [one.tokens for one in advances(process)[32:]] == [[9]]


@pytest.mark.parametrize(("count", "output"), [(3, 20_000), (40, 1000), (1500, 3), (1, TOKENS_PER_ADVANCE)])
def test_messages_have_limits_and_lose_no_token(process: Silent, count: int, output: int) -> None:
    masks_of(process).begin(batch(count, output))
    for message in process.sent:
        assert sum(len(one.tokens) for one in message.sequences) <= TOKENS_PER_ADVANCE
        assert len(message.sequences) <= SEQUENCES_PER_ADVANCE
    for number in range(1, count + 1):
        parts = [one for one in advances(process) if one.sequence == number]
        assert sum(len(one.tokens) for one in parts) == output
        assert [one.position for one in parts] == list(range(0, max(1, output), TOKENS_PER_ADVANCE))
        assert [one.mask for one in parts] == [False] * (len(parts) - 1) + [True]


def test_a_new_process_is_sent_everything_again(process: Silent) -> None:
    masks, items = masks_of(process), batch(2, 5)
    masks.begin(items)
    process.answers = [Hello(1, culprit=1, words=1)]
    masks.take_prepared()
    process.sent.clear()
    masks.begin(items)
    assert [(one.sequence, one.position, len(one.tokens)) for one in advances(process)] == [(2, 0, 5)]
    found = masks.collect(items[:1])
    assert found["0"].refusal and found["0"].row < 0


def test_a_row_is_used_again_when_its_last_mask_has_come(process: Silent) -> None:
    masks, items = Masks(process, rows=1), batch(2)  # type: ignore[arg-type]
    masks.begin(items[:1])
    masks.forget("0")
    assert isinstance(process.sent[-1], Drop)
    process.answers = [MaskedRows([Masked(1, 0)])]
    masks.begin(items[1:])
    assert [one.row for one in advances(process)] == [0, 0]


def test_rows_are_free_when_the_process_has_ended_for_good(process: Silent) -> None:
    masks, items = Masks(process, rows=2), batch(3)  # type: ignore[arg-type]
    masks.begin(items[:2])
    masks.forget("0")  # its mask is still being computed
    process.answers, process.serves = [Hello(2, refusal="It does not start.")], False
    masks.take_prepared()
    masks.forget("1")
    masks.begin(items[2:])
    assert masks.collect(items[2:])["2"].row < 0
    masks.begin(items[:2])  # as many as there are rows
