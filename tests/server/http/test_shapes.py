"""Chunks of a stream that is taken up are those that the client lacks, down to the offsets of their tokens."""

import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from slipway_process import json_lists
from slipway_process.serving.bodies import json_response
from slipway_server.engine.request import FinishReason, Logprobs
from slipway_server.http.requests.prompt import Prompt
from slipway_server.http.requests.prompts import ServedModel
from slipway_server.http.requests.schemas import ChatRequest, CompletionRequest
from slipway_server.http.responses import sse
from slipway_server.http.responses.delta import Delta
from slipway_server.http.responses.embeddings import embedding_data
from slipway_server.http.responses.logprobs import TextOffsets
from slipway_server.http.responses.resume import Identity, Resume, StreamPosition
from slipway_server.http.responses.shapes import ChatShape, Choice, CompletionShape, IndexedDelta, best
from slipway_server.text.answers.answer import AnswerForm
from slipway_server.text.tokenizer import Tokenizer

TEXT = "In the beginning God created the heaven and the earth."
IDENTITY = Identity(1, 2, "f" * 32)


class Named:
    """What a shape wants of a model."""

    def __init__(self, folder: Path, *, speculates: bool = False) -> None:
        self.name, self.tokenizer, self.speculates = "chat", Tokenizer(folder), speculates


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


DRAFTED = [Delta("a", 1, 30), Delta("b", 2, 31, accepted=1), Delta("c", 3, 32, FinishReason.LENGTH, rejected=4)]


@pytest.mark.parametrize("speculates", [False, True])
async def test_drafted_tokens_are_in_the_usage_where_there_are_any(tiny_v1: Path, *, speculates: bool) -> None:
    async def deltas() -> AsyncIterator[IndexedDelta]:
        for delta in DRAFTED:
            for index in range(2):
                yield index, delta

    model = cast(ServedModel, Named(tiny_v1, speculates=speculates))
    shape = CompletionShape(model, IDENTITY, [Prompt("x", (1,))], CompletionRequest(model="chat", prompt="x", n=2))
    choice = Choice()
    for delta in DRAFTED:
        choice.add(delta)
    assert (choice.accepted, choice.rejected, choice.tokens) == (1, 4, 3)
    *_, last = [chunk async for chunk in shape.chunks(deltas(), with_usage=True, progress=None)]
    expected = {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 8} if speculates else None
    assert last["usage"].get("completion_tokens_details") == expected
    assert last["usage"]["completion_tokens"] == 6, "those in vain are not among them"


def test_the_best_choices_are_returned_in_order() -> None:
    def choice(*values: float) -> Choice:
        made = Choice()
        made.logprobs = [Logprobs((1,), (value,), 1) for value in values]
        return made

    sure, unsure, long = choice(-0.1), choice(-3.0), choice(-1.0, -1.0, -0.1)
    assert best([unsure, long, sure], count=2) == [sure, long]
    assert best([long, long], count=1) == [long]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many objects are made into JSON at once, each time."""
    seen: list[int] = []

    def count(value: Any) -> int:
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + sum(map(count, children))

    class Counting:
        def encode(self, value: Any) -> bytes:
            seen.append(count(value))
            return msgspec.json.encode(value)

    for module in (json_lists, sse):
        monkeypatch.setattr(module, "_encoder", Counting())
    return seen


def logprobs_of(count: int) -> list[Logprobs]:
    tokens = [tuple((at + rank) % 200 + 20 for rank in range(21)) for at in range(count)]
    return [Logprobs(of_one, tuple(-rank / 7 for rank in range(21)), 1) for of_one in tokens]


def answer_of(prompt: int, answers: int, tokens: int) -> list[Choice]:
    made = []
    for _ in range(answers):
        choice = Choice()
        choice.logprobs, choice.prompt_logprobs = logprobs_of(tokens), tuple(logprobs_of(prompt - 1))
        made.append(choice)
    return made


@pytest.mark.parametrize("prompt, answers, tokens", [(5000, 1, 1), (3, 1, 5000), (3, 40, 100)])
@pytest.mark.parametrize("chat", [True, False])
def test_many_log_probabilities_are_encoded_in_pieces_and_equal(
    tiny_v1: Path, encoded: list[int], chat: bool, prompt: int, answers: int, tokens: int
) -> None:
    """Encoding holds the interpreter, and so the loop; 100,000 entries of one answer took 25 ms of it at once."""
    model = Named(tiny_v1)
    prompts = [Prompt("a" * prompt, tuple(range(20, 20 + prompt)))]
    choices = answer_of(prompt, answers, tokens)
    tokenizer, served = model.tokenizer, cast(ServedModel, model)
    if chat:
        chat_body = ChatRequest(
            model="chat", messages=[], logprobs=True, top_logprobs=20, n=answers, prompt_logprobs=20
        )
        whole = ChatShape(served, IDENTITY, prompts, chat_body, AnswerForm()).whole(choices, {})
    else:
        completion_body = CompletionRequest(
            model="chat", prompt="x", logprobs=20, echo=True, n=answers, prompt_logprobs=20
        )
        whole = CompletionShape(served, IDENTITY, prompts, completion_body).whole(choices, {})
    answer = msgspec.json.decode(cast(bytes, json_response(whole).body))
    assert len(answer["choices"]) == answers and max(encoded) < 40_000
    of_prompt = (answer if chat else answer["choices"][0])["prompt_logprobs"]
    assert of_prompt[0] is None and len(of_prompt) == prompt
    assert [entry.popitem()[1]["decoded_token"] for entry in of_prompt[1:]] == [
        tokenizer.text_of(item.tokens[20]) for item in choices[0].prompt_logprobs
    ]
    texts = [tokenizer.text_of(item.tokens[0]) for item in choices[0].logprobs]
    for choice in answer["choices"]:
        found = choice["logprobs"]
        if chat:
            assert [entry["token"] for entry in found["content"]] == texts
            continue
        assert found["tokens"][prompt:] == texts and found["token_logprobs"][0] is None
        assert {len(found[name]) for name in found} == {prompt + tokens}


def test_many_vectors_are_encoded_in_pieces(encoded: list[int]) -> None:
    vectors = [array.array("f", [number, 2.0, 3.0] * 100) for number in range(200)]
    data = embedding_data(vectors, None, "float")
    answer = msgspec.json.decode(cast(bytes, json_response({"data": data}).body))["data"]
    assert [entry["index"] for entry in answer] == [*range(200)] and max(encoded) < 20_000
    assert [entry["embedding"] for entry in answer] == [vector.tolist() for vector in vectors]
