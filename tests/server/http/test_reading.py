"""Processes that render chats and read large bodies: what a stranger writes costs them, and no one else."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from slipway_process.serving.errors import HttpError
from slipway_server.http.reading import client, inputs, reader
from slipway_server.http.reading.messages import Begin, Refusal, RenderChat, Rendered
from slipway_server.http.reading.processes import JobKilled, Processes
from slipway_server.http.reading.reader import MAX_HERE_BYTES, MAX_HERE_VALUES, RENDER_BYTES, RequestReader, is_small
from slipway_server.http.requests.prompt import Prompt, PromptLimits
from slipway_server.http.requests.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbedRequest,
    TokenizeRequest,
)
from slipway_server.http.response_api.schema import ResponsesRequest
from slipway_server.text.chat import Chat
from slipway_server.text.pool import TextTimeout
from slipway_server.text.template_source import TemplateSource
from testkit.until import until_async
from testkit.world import proc
from tests.server.http.inprocess import InProcess, model_of
from tests.server.text import templates

pytestmark = [pytest.mark.integration, pytest.mark.attack_class(17, 18)]

USER = [{"role": "user", "content": "Is it dark?"}]
LIMITS = PromptLimits(512, 2048, answer=True)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
MIB = 1 << 20


@pytest.fixture
async def read() -> AsyncIterator[RequestReader]:
    made = RequestReader(model_of())
    yield made
    await made.close()


@asynccontextmanager
async def rendering(template: str, **rules: Any) -> AsyncIterator[Processes]:
    begin = Begin("chat", TemplateSource(template), "", 128 * MIB, 0, "error")
    processes = Processes(begin, replace(reader.RENDERERS, **rules))
    try:
        yield processes
    finally:
        await processes.close()


def children() -> list[psutil.Process]:
    """The processes that read, of this one."""
    return [child for child in psutil.Process().children() if any("http.reading" in word for word in words(child))]


def words(process: psutil.Process) -> list[str]:
    """Its command line; empty where it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def worked_s(process: psutil.Process) -> float:
    """Seconds of processor that it took; 0 where it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return float(process.cpu_times().user)
    return 0.0


def large(body: dict[str, Any]) -> bytes:
    """The same body, too large to be read here."""
    return json.dumps(body | {"unknown": "x" * MAX_HERE_BYTES}).encode()


# --- the same answers wherever a body is read -------------------------------------------------------------------------


BODIES: list[tuple[type[Any], dict[str, Any]]] = [
    (CompletionRequest, {"model": "chat", "prompt": "In the beginning", "echo": True, "stop": ["x"]}),
    (CompletionRequest, {"model": "chat", "prompt": ["a", "In the"], "n": 2}),
    (CompletionRequest, {"model": "chat", "prompt": [5, 6, 7]}),
    (CompletionRequest, {"model": "chat", "prompt": [[5], [6, 7]], "logit_bias": {"5": 1.0}}),
    (ChatRequest, {"model": "chat", "messages": USER, "temperature": 0, "tools": [TOOL]}),
    (ResponsesRequest, {"model": "chat", "input": "Is it dark?", "instructions": "Be brief."}),
    (ResponsesRequest, {"model": "chat", "input": USER, "max_output_tokens": 5}),
]
WRONG: list[tuple[type[Any], dict[str, Any]]] = [
    (CompletionRequest, {"model": "chat", "prompt": ""}),
    (CompletionRequest, {"model": "chat", "prompt": [4000]}),
    (CompletionRequest, {"model": "other", "prompt": "x"}),
    (CompletionRequest, {"model": "chat", "prompt": "x", "suffix": "y"}),
    (CompletionRequest, {"model": "chat", "prompt": "x", "best_of": 2000}),
    (CompletionRequest, {"model": "chat", "prompt": 600 * "king "}),
    (ChatRequest, {"model": "chat", "messages": [{"role": "wizard", "content": "x"}]}),
    (ChatRequest, {"model": "chat", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    (ChatRequest, {"model": "chat", "messages": USER, "chat_template_kwargs": {"zebra": 1}}),
    (ResponsesRequest, {"model": "chat", "input": [{"type": "item_reference"}]}),
]


async def outcome(read: RequestReader, body: bytes, kind: type[Any]) -> tuple[Any, ...]:
    try:
        request, prompts = await read.read(body, kind, LIMITS, "")
    except HttpError as error:
        return error.status, str(error), error.param, error.code
    return request, prompts


@pytest.mark.parametrize(("kind", "body"), BODIES + WRONG)
async def test_a_large_body_is_read_as_a_small_one(kind: type[Any], body: dict[str, Any]) -> None:
    read = RequestReader(model_of(template=templates.HEADERS))
    try:
        here = await outcome(read, json.dumps(body).encode(), kind)
        aside = await outcome(read, large(body), kind)
    finally:
        await read.close()
    assert here == aside and (here[0] in (400, 404)) == ((kind, body) in WRONG), here


@pytest.mark.parametrize("kind", inputs.KINDS)
def test_each_kind_of_body_has_the_field_of_its_input(kind: type[Any]) -> None:
    assert {inputs.INPUTS[kind].replace("messages", "input"), inputs.INPUTS[kind]} & set(kind.__struct_fields__)


def test_what_is_small_has_few_bytes_and_few_values() -> None:
    assert is_small(b"x" * MAX_HERE_BYTES) and not is_small(b"x" * (MAX_HERE_BYTES + 1))
    for mark in (b",", b"[", b"{"):
        assert is_small(mark * MAX_HERE_VALUES) and not is_small(mark * (MAX_HERE_VALUES + 1))


# --- before it is tokenized -------------------------------------------------------------------------------------------


@pytest.mark.finding("F1")
@pytest.mark.parametrize(
    ("kind", "body", "param", "what"),
    [
        (CompletionRequest, {"prompt": "a" * 7155}, "prompt", "7155 bytes"),
        (CompletionRequest, {"prompt": ["a", "ü" * 4000]}, "prompt", "8000 bytes"),
        (ChatRequest, {"messages": [{"role": "user", "content": "a" * 8000}]}, "messages", "8000 bytes"),
        (ChatRequest, {"messages": USER * 512}, "messages", "512 messages"),
        (ResponsesRequest, {"input": USER * 512}, "messages", "512 messages"),
        (TokenizeRequest, {"prompt": "a" * 8000}, "prompt", "8000 bytes"),
        (EmbedRequest, {"inputs": ["a" * 8000]}, "inputs", "8000 bytes"),
        (DetokenizeRequest, {"tokens": [7] * 512}, "tokens", "512 tokens"),
    ],
)
async def test_what_cannot_fit_is_neither_rendered_nor_tokenized(
    read: RequestReader,
    kind: type[Any],
    body: dict[str, Any],
    param: str,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tokens of the model stand for up to 14 bytes each."""

    def never(*_: Any, **__: Any) -> tuple[int, ...]:
        raise AssertionError("it was tokenized")

    tokenizer = read._model.tokenizer
    monkeypatch.setattr(type(tokenizer), "encode_now", lambda _, text, **more: (1,) if text == "a" else never())
    with pytest.raises(HttpError) as refusal:
        await read.read(json.dumps({"model": "chat"} | body).encode(), kind, LIMITS, "")
    error = refusal.value
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", param)
    assert what in str(error) and not children()


@pytest.mark.finding("F1")
async def test_all_prompts_of_a_request_have_a_bound_together(read: RequestReader) -> None:
    body = json.dumps({"model": "chat", "prompt": ["\n" * 3000] * 400}).encode()
    with pytest.raises(HttpError, match="All prompts together have more than 1048576 tokens"):
        await read.read(body, CompletionRequest, PromptLimits(4000, 2048), "")


async def test_a_long_chat_is_not_refused_for_what_its_template_leaves_out(read: RequestReader) -> None:
    """Templates strip blanks, and drop the reasoning of earlier turns."""
    messages = [{"role": "assistant", "content": "a" * 8000}, {"role": "user", "content": " " * 8000 + "x"}]
    model = replace(model_of(), template=TemplateSource("{{ messages[1].content.strip() }}"))
    other = RequestReader(model)
    try:
        body = json.dumps({"model": "chat", "messages": messages}).encode()
        _, [prompt] = await other.read(body, ChatRequest, LIMITS, "")
        assert prompt == Prompt("x", model.tokenizer.encode_now("x"))
    finally:
        await other.close()


# --- bounds of a process ----------------------------------------------------------------------------------------------


GROW = "{% set ns = namespace(x='0123456789') %}{% for _ in range(40) %}{% set ns.x = "
SHARED = "{% set ns = namespace(x=['a']) %}{% for _ in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
HUGE = {
    "times": "{{ 'x' * 10 ** 10 }}",
    "times a list": "{{ [messages] * 10 ** 9 }}",
    "ljust": "{{ 'a'.ljust(10 ** 9) }}",
    "center": "{{ 'a'.center(10 ** 9) }}",
    "zfill": "{{ 'a'.zfill(10 ** 9) }}",
    "expandtabs": "{{ '\\t'.expandtabs(10 ** 9) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "bytes": "{{ 'a'.encode().ljust(10 ** 9) }}",
    "to_bytes": "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "constant filter": "{{ 'a' | center(10 ** 9) }}",
    "indent": "{{ ('a\\n' * 10 ** 5) | indent(10 ** 5) }}",
    "filter format": "{{ '%1000000000d' | format(1) }}",
    "slice": "{{ 'a' | slice(10 ** 9) | list }}",
    "batch": "{{ 'a' | batch(10 ** 9, 'b') | list }}",
    "replace": "{{ ('a' * 10 ** 5).replace('a', 'b' * 10 ** 5) }}",
    "join": "{{ ('a' * 10 ** 5) | list | join('b' * 10 ** 5) }}",
    "plus": GROW + "ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "tilde": GROW + "ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "lists": "{% set ns = namespace(x=[1]) %}{% for _ in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "block": GROW
    + "ns.x %}{% endfor %}{% set b %}{% for _ in range(9999) %}{{ 'a' * 10 ** 6 }}{% endfor %}{% endset %}",
    "json of shared lists": SHARED + "{{ ns.x | tojson }}",
    "text of shared lists": SHARED + "{{ ns.x | string }}",
    "lorem ipsum": "{{ lipsum(n=10 ** 9) }}",
}
LONG = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a power": "{{ 9 ** (9 ** 9) }}",
}


@pytest.mark.finding("F15")
@pytest.mark.attack_class(6)
@pytest.mark.parametrize("template", HUGE.values(), ids=HUGE)
async def test_no_operation_of_a_template_takes_more_memory_than_its_process_may(template: str) -> None:
    """`*` and `**` alone were bounded; others made gigabytes in one step, where requests are served."""
    async with rendering(template, job_s=2.0) as processes:
        try:
            answer = await processes.ask(RenderChat(Chat(messages=USER)), "")
        except (TextTimeout, JobKilled):
            assert not children(), "it was ended"
        else:
            assert isinstance(answer, Refusal) and len(answer.message) < 500
            [child] = children()
            assert proc.peak_bytes(child.pid) < RENDER_BYTES + 64 * MIB


@pytest.mark.finding(5, "F15")
@pytest.mark.attack_class(6)
@pytest.mark.parametrize("template", LONG.values(), ids=LONG)
async def test_safety_5_a_template_without_end_is_ended(template: str) -> None:
    """No thread can interrupt one operation; a process is killed."""
    async with rendering(template, job_s=0.3) as processes:
        for _ in range(2):
            with pytest.raises(TextTimeout):
                await processes.ask(RenderChat(Chat(messages=USER)), "")
            assert not children()


async def test_ordinary_templates_make_large_texts_as_before() -> None:
    """Of what templates do: repeated rulers, wide JSON, formatted numbers."""
    source = (
        "{{ '-' * 80 }}{{ messages | tojson(indent=2) }}{{ '%05d' % 7 }}{{ 'a'.ljust(9) ~ 'b' }}{{ 'x' * 10 ** 5 }}"
    )
    async with rendering(source) as processes:
        answer = await processes.ask(RenderChat(Chat(messages=USER)), "")
    assert isinstance(answer, Rendered) and answer.text
    assert answer.text.endswith("00007a        b" + "x" * 10**5)


async def test_a_client_that_leaves_ends_no_process() -> None:
    async with rendering(templates.CHATML) as processes:
        await processes.warm_up()
        [child] = children()
        for _ in range(3):
            task = asyncio.create_task(processes.ask(RenderChat(Chat(messages=USER)), ""))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert isinstance(await processes.ask(RenderChat(Chat(messages=USER)), ""), Rendered)
        assert children() == [child]


async def test_a_process_that_ends_fails_its_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between jobs it is replaced; in the middle of one its client gets an error of its own."""
    async with rendering(LONG["loops"]) as processes:
        await processes.warm_up()
        start_s = worked_s(children()[0])
        children()[0].kill()
        await until_async(lambda: not any(process.runs for process, _ in processes._idle), "its end is noticed")
        job = asyncio.create_task(processes.ask(RenderChat(Chat(messages=USER)), ""))
        # More than its start takes: a process that ends before it has a job is another error.
        busy_s = 1.25 * start_s + 0.3
        busy = await until_async(lambda: [one for one in children() if worked_s(one) > busy_s], "it works")
        os.kill(busy[0].pid, signal.SIGKILL)
        with pytest.raises(JobKilled):
            await job


async def test_processes_that_are_idle_end_but_the_kept_one() -> None:
    async with rendering(templates.CHATML, idle_s=0.2) as processes:
        await asyncio.gather(*(processes.ask(RenderChat(Chat(messages=USER)), f"tenant {n}") for n in range(3)))
        time.sleep(0.3)  # noqa: ASYNC251 - so that all of them have been idle for too long at the same moment
        await until_async(lambda: len(children()) == 1, "one is left")
        await asyncio.sleep(0.4)
        assert len(children()) == 1


async def test_a_process_that_cannot_start_is_an_error_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.sys, "executable", "/nonexistent")
    async with InProcess(model_of()) as server:
        status, answer = await server.post("/v1/chat/completions", {"model": "chat", "messages": USER})
        assert (status, answer["error"]["code"]) == (503, "no_reader")
        assert server.outcomes() == {"error": 1}


@pytest.mark.finding("F1")
async def test_a_body_that_needs_too_much_memory_is_refused_and_the_next_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library ends its process when an allocation fails."""
    monkeypatch.setattr(reader, "READ_BYTES", 64 * MIB)
    read = RequestReader(model_of())
    try:
        text = json.dumps({"prompt": "a" * (4 * MIB)}).encode()
        with pytest.raises(HttpError) as refusal:
            await read.read(text, TokenizeRequest, PromptLimits(8 * MIB, 2048), "")
        assert (refusal.value.status, refusal.value.code, refusal.value.param) == (400, "prompt_memory", "prompt")
        assert "64 MiB" in str(refusal.value)
        _, [prompt] = await read.read(large({"model": "chat", "prompt": "a"}), CompletionRequest, LIMITS, "")
        assert prompt.tokens
    finally:
        await read.close()


@pytest.mark.finding("F2")
async def test_the_chats_of_one_tenant_leave_processes_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat of another tenant is rendered while all that one tenant may have are busy."""
    source = "{% if messages[0].content == 'slow' %}" + LONG["loops"] + "{% endif %}fast"
    async with rendering(source, job_s=60.0) as processes:
        slow = Chat(messages=[{"role": "user", "content": "slow"}])
        jobs = [asyncio.create_task(processes.ask(RenderChat(slow), "greedy")) for _ in range(6)]
        answer = await processes.ask(RenderChat(Chat(messages=USER)), "other")
        assert answer == Rendered("fast") and not any(job.done() for job in jobs)
        assert len(children()) == 3
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


async def test_it_reads_no_file_and_has_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox of templates is the first wall; `test_isolation.py` of predict has what the second one holds."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    async with rendering(templates.CHATML) as processes:
        await processes.warm_up()
        [child] = children()
        status = await asyncio.to_thread(Path(f"/proc/{child.pid}/status").read_text)
        assert "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status
        assert "hf_secret" not in str(child.environ())


@pytest.mark.parametrize("niceness", [0, 3])
async def test_a_process_that_reads_is_nicer_than_the_server_and_never_less_nice(niceness: int) -> None:
    """A server that is nice itself may not lower that: it could start no process, and refused all chats."""
    begin = Begin("chat", TemplateSource("{{ messages[0].content }}"), "", 128 * MIB, niceness, "error")
    process = client.ReadingProcess()
    try:
        await process.start(begin)
        (child,) = children()
        assert child.nice() == min(19, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
    finally:
        await process.end()
