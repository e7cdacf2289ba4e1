"""Chunks of a stream that is taken up are those that the client lacks, down to the offsets of their tokens."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from slipway_server.engine.request import FinishReason, Logprobs
from slipway_server.http.requests.prompt import Prompt
from slipway_server.http.requests.prompts import ServedModel
from slipway_server.http.requests.schemas import CompletionRequest
from slipway_server.http.responses.delta import Delta
from slipway_server.http.responses.logprobs import TextOffsets
from slipway_server.http.responses.resume import Identity, Resume, StreamPosition
from slipway_server.http.responses.shapes import Choice, CompletionShape, IndexedDelta, best
from slipway_server.text.tokenizer import Tokenizer

TEXT = "In the beginning God created the heaven and the earth."
IDENTITY = Identity(1, 2, "f" * 32)


class Named:
    """What a shape wants of a model."""

    def __init__(self, folder: Path) -> None:
        self.name, self.tokenizer = "chat", Tokenizer(folder)


async def chunks_of(model: Named, resume: Resume | None, *, echo: bool) -> list[dict[str, Any]]:
    tokens = model.tokenizer.encode_now(TEXT)
    body = CompletionRequest(model="chat", prompt="x", logprobs=0, echo=echo)
    logprobs = [Logprobs((token,), (-float(token),), 1) for token in tokens]
    known = len(resume.tokens) if resume else 0

    async def deltas() -> AsyncIterator[IndexedDelta]:
        for count, (token, item) in enumerate(zip(tokens[3:], logprobs[3:], strict=True), 1):
            finish = FinishReason.LENGTH if count == len(tokens) - 3 else None
            fresh = count > known
            of_prompt = tuple(logprobs[1:3]) if count == 1 and not resume else ()
            # Every second one has no text of its own.
            text = model.tokenizer.text_of(token) if count % 2 else ""
            yield 0, Delta(text, count, token, finish, item if fresh else None, of_prompt)

    progress = StreamPosition(IDENTITY, resume)
    prompt = Prompt("In the beginning", tokens[:3])
    shape = CompletionShape(cast(ServedModel, model), IDENTITY, [prompt], body)
    return [chunk async for chunk in shape.chunks(deltas(), with_usage=False, progress=progress) if progress.is_new]


@pytest.mark.parametrize("echo", [False, True])
async def test_a_resumed_stream_continues_with_the_same_chunks(tiny_v1: Path, echo: bool) -> None:
    model = Named(tiny_v1)
    whole = await chunks_of(model, None, echo=echo)
    tokens = model.tokenizer.encode_now(TEXT)
    offsets = [offset for chunk in whole for offset in chunk["choices"][0]["logprobs"]["text_offset"]]
    lengths = [len(model.tokenizer.text_of(token)) for token in (tokens if echo else tokens[3:])]
    assert offsets == [sum(lengths[:at]) for at in range(len(lengths))]
    checked = StreamPosition(IDENTITY)
    for position in range(1, len(tokens) - 3):
        checked.add_token(tokens[2 + position])
        resume = Resume(IDENTITY, position, checked._check, tokens[3 : 3 + position])
        assert await chunks_of(model, resume, echo=echo) == whole[position + echo :]


def test_tokens_of_one_character_share_its_offset(tiny_v1: Path) -> None:
    """reports.md, 12: each token of a part of a character counted as one, and all later offsets were wrong."""
    tokenizer, text = Tokenizer(tiny_v1), "Lo, héllo ⚓ 漢字 end"
    offsets = TextOffsets(tokenizer)
    found = [(tokenizer.text_of(token), offsets.push(token)) for token in tokenizer.encode_now(text)]
    assert all(text[offset:].startswith(shown) for shown, offset in found if "\ufffd" not in shown)
    parts = [offset for shown, offset in found if "\ufffd" in shown]
    assert len(parts) > len(set(parts)) and {text[offset] for offset in parts} & set("⚓漢字")


def test_the_best_choices_are_returned_in_order() -> None:
    def choice(*values: float) -> Choice:
        made = Choice()
        made.logprobs = [Logprobs((1,), (value,), 1) for value in values]
        return made

    sure, unsure, long = choice(-0.1), choice(-3.0), choice(-1.0, -1.0, -0.1)
    assert best([unsure, long, sure], count=2) == [sure, long]
    assert best([long, long], count=1) == [long]
