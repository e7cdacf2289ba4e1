"""Clients of many kinds, unmodified, against a real server: the answers are those of the model itself."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from transformers import AutoTokenizer

from slipway_server.models.loader import load
from tests.gateway.harness import gateway
from tests.server.clients.environment import run_client
from tests.server.process import ServerProcess, post

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
MESSAGES = [{"role": "system", "content": "You are a scribe."}, {"role": "user", "content": "And God made"}]


@pytest.fixture(scope="module")
def expected(server: ServerProcess) -> dict[str, Any]:
    """The answers of the server without any client."""
    chat = {"model": "chat", "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
    text = {"model": "chat", "prompt": "In the beginning", "temperature": 0, "max_tokens": 12}
    whole = post(server.url + "/v1/chat/completions", chat)[2]
    return {
        "chat": whole["choices"][0]["message"]["content"],
        "usage": whole["usage"],
        "text": post(server.url + "/v1/completions", text)[2]["choices"][0]["text"],
    }


def check_vectors(vectors: list[list[float]]) -> None:
    king, queen, bread = map(numpy.array, vectors)
    assert len(king) == 384 and numpy.linalg.norm(king) == pytest.approx(1, abs=1e-3)
    assert king @ queen > king @ bread


def test_langchain_chats_streams_calls_tools_and_embeds(
    server: ServerProcess, embedder: ServerProcess, expected: dict[str, Any], tmp_path: Path
) -> None:
    found = json.loads(run_client(HERE / "with_langchain.py", server.url + "/v1", embedder.url + "/v1", cwd=tmp_path))
    chat, usage = expected["chat"], expected["usage"]
    assert [found["whole"], found["streamed"], found["later"], *found["batch"]] == [chat] * 5
    assert found["finish"] in ("stop", "length") and found["chunks"] > 5
    assert found["usage"]["input_tokens"] == usage["prompt_tokens"] == found["streamed_usage"]["input_tokens"]
    assert found["usage"]["output_tokens"] == usage["completion_tokens"] == found["logprobs"]
    assert -50 <= found["report"]["degrees"] <= 50 and len(found["report"]["city"]) <= 12
    assert found["call"]["name"] == "weather" and isinstance(found["call"]["args"]["days"], int)
    assert isinstance(found["goes_on"], str) and found["text"] == expected["text"]
    check_vectors(found["vectors"])


def test_litellm_chats_streams_calls_tools_embeds_and_knows_errors(
    server: ServerProcess, embedder: ServerProcess, expected: dict[str, Any], tmp_path: Path
) -> None:
    found = json.loads(run_client(HERE / "with_litellm.py", server.url + "/v1", embedder.url + "/v1", cwd=tmp_path))
    chat, usage = expected["chat"], expected["usage"]
    assert [found[name] for name in ("whole", "by_openai", "streamed", "later")] == [chat] * 4
    assert found["finish"] in ("stop", "length") and found["chunks"] > 5
    assert found["usage"] == [usage["prompt_tokens"], usage["completion_tokens"]]
    assert found["call"][0] == "weather" and 1 <= found["call"][1]["days"] <= 9
    assert found["call_finish"] == "tool_calls" and 1 <= found["structured"]["days"] <= 9
    assert found["text"] == expected["text"]
    check_vectors(found["vectors"])
    assert found["errors"] == [["NotFoundError", 404], ["BadRequestError", 400], ["BadRequestError", 400]]


def test_instructor_gets_its_objects_by_tools_and_by_schema(server: ServerProcess, tmp_path: Path) -> None:
    found = json.loads(run_client(HERE / "with_instructor.py", server.url + "/v1", cwd=tmp_path))
    for name in ("TOOLS", "JSON_SCHEMA"):
        assert found[name]["city"] in ("Oslo", "Lima") and -50 <= found[name]["degrees"] <= 50
    assert found["parts"] > 3 and found["last"] == found["JSON_SCHEMA"]


async def test_anthropics_client_chats_streams_and_calls_tools_through_the_gateway(
    server: ServerProcess, expected: dict[str, Any], tmp_path: Path
) -> None:
    async with gateway() as door:
        door.route(("r1", 100, [server.url]))
        text = await asyncio.to_thread(run_client, HERE / "with_anthropic.py", door.url, cwd=tmp_path)
    found, usage = json.loads(text), expected["usage"]
    tokens = [usage["prompt_tokens"], usage["completion_tokens"]]
    assert found["whole"] == found["streamed"] == expected["chat"] and found["pieces"] > 5
    assert found["usage"] == found["streamed_usage"] == tokens and found["count"] == tokens[0]
    assert found["stop_reason"] in ("end_turn", "max_tokens") and found["request_id"]
    for reason, call in (found["call"], found["streamed_call"]):
        assert reason == "tool_use" and call["city"] in ("Oslo", "Lima") and 1 <= call["days"] <= 9
    assert found["name"] == "weather" and found["later"] in ("end_turn", "max_tokens")
    assert found["errors"] == [["NotFoundError", "not_found_error"], ["BadRequestError", "invalid_request_error"]]


# --- lm-eval ----------------------------------------------------------------------------------------------------------

CHOICES = [
    {"text": "And God made, Let there", "choices": [" be light", " was a king"], "label": 0},
    {"text": "In the beginning God", "choices": [" went down", " created the heaven"], "label": 1},
]
PROMPTS = [{"text": "And it came to pass", "answer": ""}, {"text": "Blessed are", "answer": ""}]
CHOOSING = """
task: choosing
dataset_path: json
dataset_kwargs: {data_files: {test: choosing.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
CONTINUING = """
task: continuing
dataset_path: json
dataset_kwargs: {data_files: {test: continuing.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], max_gen_toks: 16, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def evaluate(folder: Path, kind: str, url: str, tasks: str, *flags: str | Path) -> dict[str, list[dict[str, Any]]]:
    """The samples of each task."""
    for name, task, documents in (("choosing", CHOOSING, CHOICES), ("continuing", CONTINUING, PROMPTS)):
        (folder / f"{name}.yaml").write_text(task)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    model = f"model=chat,base_url={url},max_length=512,num_concurrent=2,max_retries=1"
    command = ["-m", "lm_eval", "run", "--model", kind, "--tasks", tasks, "--include_path", folder]
    more = [f"{model},{flags[0]}" if flags else model, *flags[1:]]
    run_client(*command, "--output_path", folder / "out", "--log_samples", "--model_args", *more, cwd=folder)
    found = {}
    for task in tasks.split(","):
        (path,) = (folder / "out").rglob(f"samples_{task}_*.jsonl")
        samples = [json.loads(line) for line in path.read_text().splitlines()]
        found[task] = sorted(samples, key=lambda sample: sample["doc_id"])
    return found


def test_lm_eval_completions_scores_and_continues_as_transformers_does(
    server: ServerProcess, tiny_v1: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_v1)
    model = load(tiny_v1, task="generate", dtype="float32", device="cpu")
    tokenize = f"tokenizer_backend=huggingface,tokenizer={tiny_v1}"
    found = evaluate(tmp_path, "local-completions", server.url + "/v1/completions", "choosing,continuing", tokenize)
    for document, sample in zip(CHOICES, found["choosing"], strict=True):
        for choice, (score, _) in zip(document["choices"], [one[0] for one in sample["resps"]], strict=True):
            context = tokenizer(document["text"]).input_ids
            ids = tokenizer(document["text"] + choice, return_tensors="pt").input_ids
            with torch.inference_mode():
                rows = model(ids).logits[0, :-1].log_softmax(dim=-1)
            own = sum(float(rows[at - 1, ids[0, at]]) for at in range(len(context), ids.shape[1]))
            assert math.isclose(float(score), own, abs_tol=1e-3)
    for document, sample in zip(PROMPTS, found["continuing"], strict=True):
        ids = tokenizer(document["text"], return_tensors="pt").input_ids
        output = model.generate(ids, do_sample=False, max_new_tokens=16, pad_token_id=0)[0, ids.shape[1] :]
        text = tokenizer.decode(output, skip_special_tokens=True).split(".")[0]
        assert sample["resps"][0][0].strip() == text.strip()


def test_lm_eval_chat_completions_continues_as_the_server_does(server: ServerProcess, tmp_path: Path) -> None:
    url = server.url + "/v1/chat/completions"
    found = evaluate(
        tmp_path, "local-chat-completions", url, "continuing", "eos_string=<|im_end|>", "--apply_chat_template"
    )
    for document, sample in zip(PROMPTS, found["continuing"], strict=True):
        body = {
            "model": "chat", "messages": [{"role": "user", "content": document["text"]}], "temperature": 0,
            "max_tokens": 16, "stop": ["."],
        }  # fmt: skip
        assert sample["resps"][0][0] == post(url, body)[2]["choices"][0]["message"]["content"]


def test_agents_answer_stream_go_on_and_call_tools_by_the_responses_api(server: ServerProcess, tmp_path: Path) -> None:
    found = json.loads(run_client(HERE / "with_agents.py", server.url + "/v1", cwd=tmp_path))
    messages = [{"role": "system", "content": "You are a scribe."}, {"role": "user", "content": "And God made"}]
    chat = {"model": "chat", "messages": messages, "temperature": 0, "max_tokens": 200, "stop": ["e"]}
    expected = post(server.url + "/v1/chat/completions", chat)[2]
    assert found["whole"] == found["streamed"] == expected["choices"][0]["message"]["content"]
    assert found["kinds"][0] == "response.created" and found["kinds"][-1] == "response.completed"
    assert found["usage"] == [expected["usage"]["prompt_tokens"], expected["usage"]["completion_tokens"]]
    assert isinstance(found["again"], str)
    assert found["called"] in ("light in the hall", "light in the barn")
