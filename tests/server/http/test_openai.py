"""OpenAI's endpoints through OpenAI's own client, against transformers' own answers."""

import base64
import json
from pathlib import Path

import jsonschema
import numpy
import openai
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from slipway_server.models.loader import load
from tests.server.process import ServerProcess, post

# A start imports torch and transformers: seconds on a quiet machine, a minute on a crowded one.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

VERSE = "And God said, Let there be light: and there was light."
MESSAGES = [{"role": "user", "content": VERSE}]
WORDS = ["yes", "no", "never"]


@pytest.fixture(scope="module")
def reference(tiny_v1: Path) -> str:
    """What transformers answers to the same chat, through its own template and tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_v1)
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    model = load(tiny_v1, task="generate", dtype="float32", device="cpu")
    output = model.generate(**prompt, do_sample=False, max_new_tokens=40, pad_token_id=0)
    return tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def test_chat_whole(client: openai.OpenAI, reference: str) -> None:
    answer = client.chat.completions.create(model="chat", messages=MESSAGES, temperature=0, max_tokens=40)
    assert answer.choices[0].message.content == reference
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage and answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_streamed(client: openai.OpenAI, reference: str) -> None:
    chunks = list(
        client.chat.completions.create(
            model="chat",
            messages=MESSAGES,
            temperature=0,
            max_completion_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == reference
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("stop", "length")
    assert chunks[-1].usage and not chunks[-1].choices
    assert len(chunks) > 10


def test_content_parts_are_text(client: openai.OpenAI, reference: str) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": VERSE}]}]
    answer = client.chat.completions.create(model="chat", messages=parts, temperature=0, max_tokens=40)
    assert answer.choices[0].message.content == reference


def test_completions_of_texts_and_token_ids_agree(client: openai.OpenAI, tiny_v1: Path) -> None:
    texts = ["In the beginning", "And the king said unto", "Blessed are they"]
    tokenizer = AutoTokenizer.from_pretrained(tiny_v1)
    by_text = client.completions.create(model="chat", prompt=texts, temperature=0, max_tokens=12)
    by_ids = client.completions.create(
        model="chat", prompt=[tokenizer(text).input_ids for text in texts], temperature=0, max_tokens=12
    )
    alone = [client.completions.create(model="chat", prompt=t, temperature=0, max_tokens=12) for t in texts]
    assert [c.text for c in by_text.choices] == [c.text for c in by_ids.choices] == [a.choices[0].text for a in alone]
    assert [c.index for c in by_text.choices] == [0, 1, 2]
    assert by_text.usage and by_text.usage.prompt_tokens == sum(len(tokenizer(t).input_ids) for t in texts)


def test_tokens_that_the_prefix_cache_had_are_counted(client: openai.OpenAI) -> None:
    prompt = "And it came to pass in those days, that there went out a decree. " * 6
    usages = [client.completions.create(model="chat", prompt=prompt, max_tokens=1).usage for _ in range(2)]
    first, second = (
        usage.prompt_tokens_details.cached_tokens for usage in usages if usage and usage.prompt_tokens_details
    )
    assert first == 0 and usages[1] and 32 <= second < usages[1].prompt_tokens
    with client.completions.create(
        model="chat", prompt=prompt, max_tokens=1, stream=True, stream_options={"include_usage": True}
    ) as stream:
        last = list(stream)[-1].usage
    assert last and last.prompt_tokens_details and last.prompt_tokens_details.cached_tokens == second


def test_streamed_completions_of_several_prompts(client: openai.OpenAI) -> None:
    texts = ["In the beginning", "Blessed are they"]
    whole = client.completions.create(model="chat", prompt=texts, temperature=0, max_tokens=10)
    streamed = ["", ""]
    for chunk in client.completions.create(model="chat", prompt=texts, temperature=0, max_tokens=10, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [choice.text for choice in whole.choices]


def test_stop_strings_cut_across_tokens(client: openai.OpenAI) -> None:
    ask = {"model": "chat", "prompt": "In the beginning", "temperature": 0, "max_tokens": 30}
    text = client.completions.create(**ask).choices[0].text
    stop = text[9:14]
    answer = client.completions.create(**ask, stop=[stop])
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage and answer.usage.completion_tokens < 30
    streamed = client.completions.create(**ask, stop=[stop], stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == text[: text.index(stop)]


def test_sampling_parameters_have_their_effect(client: openai.OpenAI) -> None:
    def ask(**more: float) -> str:
        answer = client.completions.create(
            model="chat", prompt="And it came to pass", max_tokens=24, **({"temperature": 0} | more)
        )
        return answer.choices[0].text

    greedy = ask()
    assert ask(temperature=1.2, seed=5) == ask(temperature=1.2, seed=5) != ask(temperature=1.2, seed=6)
    assert ask(temperature=1.2, seed=5, top_p=1e-6) == greedy
    assert ask(frequency_penalty=2.0) != greedy != ask(presence_penalty=2.0)


def test_choices_differ_and_are_the_seeds_own(client: openai.OpenAI) -> None:
    ask = {"model": "chat", "prompt": "And it came to pass", "max_tokens": 12, "temperature": 1.2, "seed": 3}
    both = client.completions.create(**ask, n=3)
    texts = [choice.text for choice in both.choices]
    assert [choice.index for choice in both.choices] == [0, 1, 2] and len(set(texts)) == 3
    assert client.completions.create(**ask).choices[0].text == texts[0]
    streamed = ["", "", ""]
    for chunk in client.completions.create(**ask, n=3, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts
    assert both.usage and both.usage.completion_tokens == 36


def test_logprobs_in_both_shapes_whole_and_streamed(client: openai.OpenAI) -> None:
    ask = {"model": "chat", "messages": MESSAGES, "temperature": 0, "max_tokens": 6}
    whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3).choices[0]
    assert whole.logprobs and whole.logprobs.content
    for entry in whole.logprobs.content:
        # Greedy: what was chosen is the likeliest.
        assert entry.token == entry.top_logprobs[0].token and entry.logprob == entry.top_logprobs[0].logprob <= 0
        assert entry.logprob >= entry.top_logprobs[1].logprob >= entry.top_logprobs[2].logprob
        assert len(entry.top_logprobs) == 3 and bytes(entry.bytes or []).decode() == entry.token
    chunks = list(client.chat.completions.create(**ask, logprobs=True, top_logprobs=3, stream=True))
    in_chunks = [
        entry for c in chunks if c.choices and c.choices[0].logprobs for entry in c.choices[0].logprobs.content or []
    ]
    assert in_chunks == whole.logprobs.content

    done = client.completions.create(model="chat", prompt="In the beginning", temperature=0, max_tokens=6, logprobs=2)
    old = done.choices[0].logprobs
    assert old and old.tokens and "".join(old.tokens) == done.choices[0].text
    assert old.text_offset == [len("".join(old.tokens[:index])) for index in range(6)]
    assert all(len(top) == 2 for top in old.top_logprobs or []) and len(old.token_logprobs or []) == 6
    plain = client.completions.create(model="chat", prompt="In the beginning", temperature=0, max_tokens=6)
    assert plain.choices[0].text == done.choices[0].text and plain.choices[0].logprobs is None


def test_further_sampling_parameters_have_their_effect(client: openai.OpenAI, tiny_v1: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_v1)

    def ask(**more: object) -> str:
        answer = client.completions.create(
            model="chat", prompt="And it came to pass", max_tokens=12, temperature=0, extra_body=more
        )
        return answer.choices[0].text

    greedy = ask()
    first = tokenizer(greedy).input_ids[0]
    assert not ask(logit_bias={str(first): -100}).startswith(greedy[:1])
    assert set(tokenizer(ask(allowed_token_ids=[first])).input_ids) == {first}
    assert tokenizer(ask(stop_token_ids=[first])).input_ids == []
    assert len(tokenizer(ask(stop_token_ids=[first], min_tokens=3)).input_ids) >= 3
    word = next(word for word in greedy.split() if word.isalpha())
    assert f" {word}" not in ask(bad_words=[word])
    assert ask(repetition_penalty=5.0) != greedy
    assert ask(min_p=1.0, temperature=1.5) == greedy


@pytest.fixture(scope="module")
def scores(tiny_v1: Path) -> tuple[list[int], torch.Tensor]:
    """Token ids of a prompt, and what transformers thinks of each in its place: [tokens - 1, vocabulary]."""
    ids = AutoTokenizer.from_pretrained(tiny_v1)(VERSE, return_tensors="pt").input_ids
    model = load(tiny_v1, task="generate", dtype="float32", device="cpu")
    with torch.inference_mode():
        return ids[0].tolist(), model(ids).logits[0, :-1].log_softmax(dim=-1)


def test_echo_returns_the_prompt_with_its_log_probabilities(
    client: openai.OpenAI, scores: tuple[list[int], torch.Tensor], tiny_v1: Path
) -> None:
    ids, exact = scores
    own = [float(row[token]) for row, token in zip(exact, ids[1:], strict=True)]
    ask = {"model": "chat", "prompt": VERSE, "temperature": 0, "logprobs": 2}
    plain = client.completions.create(**ask, max_tokens=6)
    whole = client.completions.create(**ask, max_tokens=6, echo=True)
    text, logprobs = whole.choices[0].text, whole.choices[0].logprobs
    assert text == VERSE + plain.choices[0].text
    assert logprobs and logprobs.tokens and logprobs.token_logprobs and logprobs.top_logprobs and logprobs.text_offset
    assert "".join(logprobs.tokens) == text and whole.usage == plain.usage
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:index])) for index in range(len(ids) + 6)]
    assert (logprobs.token_logprobs[0], logprobs.top_logprobs[0]) == (None, None)
    assert logprobs.token_logprobs[1 : len(ids)] == pytest.approx(own, abs=1e-4)
    best = [pytest.approx(row.topk(2).values.tolist(), abs=1e-4) for row in exact]
    assert [list(top.values()) for top in logprobs.top_logprobs[1 : len(ids)]] == best
    assert plain.choices[0].logprobs
    assert logprobs.token_logprobs[len(ids) :] == pytest.approx(plain.choices[0].logprobs.token_logprobs, abs=1e-4)

    # Nothing but the prompt: how evaluations score given texts.
    alone = client.completions.create(**ask, max_tokens=0, echo=True)
    assert (alone.choices[0].text, alone.choices[0].finish_reason) == (VERSE, "length")
    assert alone.usage and alone.usage.completion_tokens == 0
    assert alone.choices[0].logprobs
    assert alone.choices[0].logprobs.token_logprobs == [None, *logprobs.token_logprobs[1 : len(ids)]]
    by_ids = client.completions.create(model="chat", prompt=[ids, ids[:3]], echo=True, max_tokens=0)
    decode = AutoTokenizer.from_pretrained(tiny_v1).decode
    assert [choice.text for choice in by_ids.choices] == [decode(ids), decode(ids[:3])]

    chunks = list(client.completions.create(**ask, max_tokens=6, echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == text and chunks[0].choices[0].text == VERSE
    for field in ("tokens", "token_logprobs", "text_offset"):
        in_parts = [item for chunk in chunks for item in getattr(chunk.choices[0].logprobs, field)]
        exact_field = getattr(logprobs, field)
        assert in_parts == (pytest.approx(exact_field, abs=1e-4) if field == "token_logprobs" else exact_field)
    without = client.completions.create(model="chat", prompt=VERSE, temperature=0, max_tokens=6, echo=True, n=2)
    assert [choice.text for choice in without.choices] == [text, text]
    assert without.choices[0].logprobs is None


def test_prompt_logprobs_in_the_shape_of_vllm(
    server: ServerProcess, scores: tuple[list[int], torch.Tensor], tiny_v1: Path
) -> None:
    ids, exact = scores
    ask = {"model": "chat", "prompt": VERSE, "max_tokens": 1, "prompt_logprobs": 2, "logprobs": 0}
    choice = post(server.url + "/v1/completions", ask)[2]["choices"][0]
    first, *rest = choice["prompt_logprobs"]
    assert first is None and len(rest) == len(ids) - 1 and len(choice["logprobs"]["tokens"]) == 1
    decode = AutoTokenizer.from_pretrained(tiny_v1).decode
    for item, token, row in zip(rest, ids[1:], exact, strict=True):
        assert set(item) == {str(token), *map(str, row.topk(2).indices.tolist())}
        for number, entry in item.items():
            assert entry["logprob"] == pytest.approx(float(row[int(number)]), abs=1e-4)
            assert entry["decoded_token"] == decode([int(number)])
            assert entry["rank"] == int((row > row[int(number)]).sum()) + 1
    chat = {"model": "chat", "messages": MESSAGES, "max_tokens": 1, "prompt_logprobs": 0}
    answer = post(server.url + "/v1/chat/completions", chat)[2]
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert all(len(entry) == 1 for entry in answer["prompt_logprobs"][1:])


def test_best_of_returns_the_likeliest_candidates(client: openai.OpenAI) -> None:
    ask = {"model": "chat", "prompt": "And it came to pass", "max_tokens": 8, "temperature": 1.3, "seed": 4}
    texts = ["And it came to pass", "In the beginning"]
    batch = ask | {"prompt": texts}
    candidates = client.completions.create(**batch, n=6, logprobs=0).choices
    best = client.completions.create(**batch, n=2, best_of=6)
    expected = []
    for start in (0, 6):
        scored = [(sum(c.logprobs.token_logprobs) / 8, c.text) for c in candidates[start : start + 6]]  # type: ignore
        expected += [text for _, text in sorted(scored, reverse=True)[:2]]
    assert [choice.text for choice in best.choices] == expected
    assert [choice.index for choice in best.choices] == [0, 1, 2, 3]
    assert all(choice.logprobs is None for choice in best.choices)
    assert best.usage and best.usage.completion_tokens == 2 * 6 * 8
    choices = client.completions.create(**ask, best_of=6, logprobs=1).choices
    assert choices[0].text == expected[0] and choices[0].logprobs and len(choices[0].logprobs.tokens or []) == 8
    # As many as are returned: nothing to choose from.
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**ask, best_of=1, stream=True))


def test_beam_search_answers_as_transformers_does(client: openai.OpenAI, tiny_v1: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_v1)
    model = load(tiny_v1, task="generate", dtype="float32", device="cpu")
    texts = [VERSE + " And the evening and the morning were", "Blessed are they"]

    def expected(text: str, **more: object) -> list[str]:
        ids = tokenizer(text, return_tensors="pt")
        output = model.generate(**ids, num_beams=4, do_sample=False, max_new_tokens=12, pad_token_id=0, **more)
        return tokenizer.batch_decode(output[:, ids.input_ids.shape[1] :], skip_special_tokens=True)

    ask = {"model": "chat", "max_tokens": 12}
    beams = {"use_beam_search": True}
    four = client.completions.create(**ask, prompt=texts, n=4, extra_body=beams)
    assert [c.text for c in four.choices] == [t for text in texts for t in expected(text, num_return_sequences=4)]
    assert [c.index for c in four.choices] == list(range(8))
    assert four.usage and 0 < four.usage.completion_tokens <= 8 * 12
    favours_short = {"length_penalty": -1.0, "early_stopping": "never"}
    one = client.completions.create(**ask, prompt=texts[0], best_of=4, echo=True, extra_body=beams | favours_short)
    assert [c.text for c in one.choices] == [texts[0] + text for text in expected(texts[0], **favours_short)]
    chat = client.chat.completions.create(
        **ask, messages=MESSAGES, n=2, extra_body=beams | {"early_stopping": True, "timeout": 60}
    )
    assert len({choice.message.content for choice in chat.choices}) == 2


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"use_beam_search": True}, "n"),
        ({"use_beam_search": True, "best_of": 1}, "n"),
        ({"use_beam_search": True, "n": 21}, "n"),
        ({"use_beam_search": True, "n": 2, "stream": True}, "stream"),
        ({"use_beam_search": True, "n": 2, "temperature": 0.5}, "temperature"),
        ({"use_beam_search": True, "n": 2, "top_p": 0.9}, "top_p"),
        ({"use_beam_search": True, "n": 2, "stop": "x"}, "stop"),
        ({"use_beam_search": True, "n": 2, "stop_token_ids": [5]}, "stop_token_ids"),
        ({"use_beam_search": True, "n": 2, "logit_bias": {"3": 1}}, "logit_bias"),
        ({"use_beam_search": True, "n": 2, "logprobs": 1}, "logprobs"),
        ({"use_beam_search": True, "n": 2, "early_stopping": "soon"}, "early_stopping"),
        ({"use_beam_search": True, "n": 2, "max_tokens": 0, "echo": True}, "max_tokens"),
        ({"use_beam_search": True, "n": 3, "best_of": 2}, "best_of"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 21}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 2, "temperature": 0}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"logprobs": 21, "echo": True}, "logprobs"),
        ({"echo": "yes"}, "echo"),
        ({"prompt": ["x"] * 300, "best_of": 10}, "n"),
    ],
)
def test_completions_that_make_no_sense_are_refused_by_name(
    server: ServerProcess, more: dict[str, object], param: str
) -> None:
    status, _, answer = post(server.url + "/v1/completions", {"model": "chat", "prompt": "x"} | more)
    assert (status, answer["error"]["param"]) == (400, param)


def test_an_answer_that_takes_too_long_is_ended(server: ServerProcess) -> None:
    body = {"model": "chat", "prompt": "In the beginning", "max_tokens": 400, "ignore_eos": True, "timeout": 0.001}
    status, _, answer = post(server.url + "/v1/completions", body)
    assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["chat"]
    assert client.models.retrieve("chat").model_dump()["max_model_len"] == 512
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"n": 100}, "n", None),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "unsupported_parameter"),
        ({"logit_bias": {"five": 3}}, "logit_bias", None),
        ({"logit_bias": {"999999": 3}}, "logit_bias", None),
        ({"logit_bias": {"5": 300}}, "logit_bias", None),
        ({"top_logprobs": 3}, "top_logprobs", None),
        ({"logprobs": True, "top_logprobs": 30}, "top_logprobs", None),
        ({"response_format": {"type": "xml"}}, "response_format", None),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"max_tokens": 600}, "max_tokens", "context_length_exceeded"),
        ({"temperature": 3}, "temperature", None),
        ({"top_p": 0}, "top_p", None),
        ({"stop": ["x"] * 17}, "stop", None),
        ({"stop": ""}, "stop", None),
        ({"messages": []}, "messages", None),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, "messages", "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", None),
    ],
)
def test_unsupported_fields_are_refused_by_name(
    client: openai.OpenAI, more: dict[str, object], param: str, code: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(**({"model": "chat", "messages": MESSAGES} | more))  # type: ignore[call-overload]
    assert (refusal.value.param, refusal.value.code) == (param, code)
    assert refusal.value.type == "invalid_request_error"


def test_fields_with_default_values_are_accepted(server: ServerProcess) -> None:
    neutral = {"n": 1, "tools": [], "logit_bias": {}, "logprobs": False, "response_format": {"type": "text"}}
    body = {"model": "chat", "messages": MESSAGES, "max_tokens": 1, "user": "u", "whatever": 1} | neutral
    assert post(server.url + "/v1/chat/completions", body)[0] == 200


def test_other_refusals(server: ServerProcess, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refusal:
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert refusal.value.code == "model_not_found"
    url = server.url + "/v1/chat/completions"
    assert post(url, b"{nonsense")[0] == 400
    assert post(url, b"[]")[0] == 400
    assert post(url, {"messages": MESSAGES})[2]["error"]["param"] == "model"
    assert post(url, b'{"model": "chat", "pad": "' + b"x" * 300_000 + b'"}')[0] == 413
    assert post(server.url + "/v1/nothing", {})[2]["error"]["type"] == "invalid_request_error"
    assert post(server.url + "/v1/completions", {"model": "chat", "prompt": [99999]})[2]["error"]["param"] == "prompt"
    assert post(server.url + "/v1/embeddings", {"model": "chat", "input": "x"})[2]["error"]["param"] == "model"


def test_embeddings_equal_those_of_transformers(embedder: ServerProcess, encoder: Path) -> None:
    texts = ["A ship leaves the slipway.", "Bread.", "The launch of a vessel into the water, " * 8, "bread and butter"]
    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()
    with torch.inference_mode():
        expected = []
        for text in texts:
            inputs = tokenizer(text, return_tensors="pt", truncation=False, padding=False)
            mean = model(**inputs).last_hidden_state.mean(dim=1)
            expected.append(torch.nn.functional.normalize(mean, dim=-1)[0].numpy())
    with openai.OpenAI(base_url=embedder.url + "/v1", api_key="none", max_retries=0) as client:
        # The client requests base64 by default; floats must be requested.
        packed = client.embeddings.create(model="minilm", input=texts)
        plain = client.embeddings.create(model="minilm", input=texts, encoding_format="float")
        alone = client.embeddings.create(model="minilm", input=texts[1])
        with pytest.raises(openai.BadRequestError) as refusal:
            client.embeddings.create(model="minilm", input="far too long " * 300)
    assert refusal.value.code == "context_length_exceeded"
    numpy.testing.assert_allclose([item.embedding for item in packed.data], expected, atol=2e-6)
    numpy.testing.assert_allclose([item.embedding for item in plain.data], expected, atol=2e-6)
    numpy.testing.assert_allclose(alone.data[0].embedding, expected[1], atol=2e-6)
    assert packed.usage.prompt_tokens == sum(
        len(tokenizer(text, truncation=False, padding=False).input_ids) for text in texts
    )
    raw = post(embedder.url + "/v1/embeddings", {"model": "minilm", "input": "Bread.", "encoding_format": "base64"})[2]
    vector = numpy.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), dtype=numpy.float32)
    numpy.testing.assert_allclose(vector, expected[1], atol=2e-6)


def test_more_inputs_than_slots_and_queue_hold(embedder: ServerProcess) -> None:
    inputs = [f"ship {n}" for n in range(320)]
    status, _, answer = post(embedder.url + "/v1/embeddings", {"model": "minilm", "input": inputs})
    assert status == 200 and len(answer["data"]) == 320
    assert post(embedder.url + "/v1/embeddings", {"model": "minilm", "input": ["x"] * 2049})[0] == 400


def test_api_embed(embedder: ServerProcess) -> None:
    status, _, answer = post(embedder.url + "/api/v1/embed", {"model": "minilm", "inputs": ["a", "b"]})
    assert status == 200
    assert set(answer) == {"embeddings", "dimensions", "usage", "model_version"}
    assert (len(answer["embeddings"]), answer["dimensions"]) == (2, 384)


def test_answers_to_a_schema_are_valid_whole_streamed_and_with_beams(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": schema}}
    ask = {"model": "chat", "messages": MESSAGES, "response_format": wanted, "max_tokens": 200, "seed": 5}
    whole = client.chat.completions.create(**ask, n=3)
    for choice in whole.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), schema)
    streamed = client.chat.completions.create(**ask, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in streamed) == whole.choices[0].message.content
    more = {"use_beam_search": True, "guided_choice": WORDS}
    best = client.chat.completions.create(model="chat", messages=MESSAGES, n=3, temperature=0, extra_body=more)
    # Two of them may be the same text in other tokens.
    assert len(best.choices) == 3 and {choice.message.content for choice in best.choices} <= set(WORDS)


def test_a_grammar_that_cannot_be_is_refused_by_its_keyword(client: openai.OpenAI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"type": "string"}}}}
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model="chat", messages=MESSAGES, response_format=wanted)
    assert (refusal.value.param, refusal.value.code) == ("response_format", "invalid_grammar")
    assert '"not"' in refusal.value.message
