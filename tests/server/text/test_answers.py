"""Content, reasoning and calls of an answer: the same whole and in pieces, nothing is lost, and the time is linear."""

import itertools
import random
import re
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slipway_server.text.answers.answer import AnswerForm
from slipway_server.text.answers.call_object import MAX_ARGUMENT_CHARACTERS
from slipway_server.text.answers.call_parser import MAX_CALLS
from slipway_server.text.answers.events import AnswerEvent, ArgumentsDelta, CallStart, ContentDelta, ReasoningDelta
from slipway_server.text.answers.formats import FORMATS
from slipway_server.text.answers.selection import AnswerFormats, select_formats
from tests.server.text import transcripts
from tests.server.text.transcripts import OSLO_CALL, TOOLS, Transcript, hermes


def events_of(form: AnswerForm, pieces: Iterable[str], seed: str = "") -> list[AnswerEvent]:
    parser = form.parser(seed)
    events = [event for piece in pieces for event in parser.push(piece)]
    return [*events, *parser.finish()]


def message_of(events: list[AnswerEvent]) -> dict[str, Any]:
    names = [event.name for event in events if isinstance(event, CallStart)]
    arguments: list[list[str]] = [[] for _ in names]
    for event in events:
        if isinstance(event, ArgumentsDelta):
            arguments[event.index].append(event.text)
    return {
        "content": "".join(event.text for event in events if isinstance(event, ContentDelta)),
        "calls": list(zip(names, map("".join, arguments), strict=True)),
        "reasoning": "".join(event.text for event in events if isinstance(event, ReasoningDelta)),
    }


def read(form: AnswerForm, pieces: Iterable[str]) -> dict[str, Any]:
    return message_of(events_of(form, pieces))


def form_of(transcript: Transcript) -> AnswerForm:
    return AnswerForm(transcript.form, TOOLS, reasoning=True, thinking=transcript.thinking)


@pytest.mark.parametrize("transcript", transcripts.ALL, ids=[f"{item.form}-{item.name}" for item in transcripts.ALL])
def test_transcripts_whole_and_cut_at_every_place(transcript: Transcript) -> None:
    form, text = form_of(transcript), transcript.text
    assert read(form, [text]) == transcript.message
    assert read(form, text) == transcript.message
    for at in range(len(text) + 1):
        assert read(form, [text[:at], text[at:]]) == transcript.message, at


def test_each_format_has_its_transcripts() -> None:
    by_form = {form: [item for item in transcripts.ALL if item.form == form] for form in FORMATS}
    assert min(map(len, by_form.values())) >= 10


# Parts of all formats, in any order: most are no call.
PARTS = (
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<think>", "</think>"),
    *('{"name": "time", "arguments": {}}', '{"name":', '"arguments":', '"time"', "time", '{"a": "', '"', "\\", "é"),
    *("{", "}", "[", "]", ",", ":", ";", " ", "\n", " " * 300, "x", "null", "5", OSLO_CALL),
)
ANSWERS = st.lists(st.sampled_from(PARTS), max_size=14)


@given(parts=ANSWERS, form=st.sampled_from(["", *FORMATS]), thinking=st.booleans(), seed=st.integers(0, 2**32))
@example(parts=["<tool_call>", "{", " " * 300, "}"], form="hermes", thinking=False, seed=1)
def test_any_text_is_the_same_in_any_pieces(parts: list[str], form: str, thinking: bool, seed: int) -> None:
    text = "".join(parts)
    reader = AnswerForm(form, TOOLS, reasoning=bool(seed % 2), thinking=thinking)
    whole = read(reader, [text])
    assert read(reader, text) == whole == read(reader, parts)
    cuts = sorted(random.Random(seed).choices(range(len(text) + 1), k=3))
    assert read(reader, [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]) == whole
    if not whole["calls"] and not whole["reasoning"]:
        # Without a call all of it is content, but for tags of empty reasoning and what is around them.
        rest = re.sub(r"\s*<think>\s*(</think>\s*|$)", "", text, count=1) if reader.reasoning else text
        assert whole["content"] in (text, rest) or (thinking and whole["content"].strip() in text)


def test_ids_follow_from_the_text_and_the_stream() -> None:
    """Another server that continues an answer gives its calls the same ids."""
    text = f"{hermes(OSLO_CALL)}{hermes(OSLO_CALL)}"

    def ids(form: str, text: str, seed: str) -> list[str]:
        events = events_of(AnswerForm(form, TOOLS, short_ids=form == "mistral"), text, seed)
        return [event.id for event in events if isinstance(event, CallStart)]

    first, second = ids("hermes", text, "a.0")
    assert first != second and [first, second] == ids("hermes", text, "a.0") != ids("hermes", text, "a.1")
    assert re.fullmatch("call_[0-9a-f]{24}", first)
    (short,) = ids("mistral", f"[TOOL_CALLS][{OSLO_CALL}]", "a.0")
    assert re.fullmatch("[0-9a-z]{9}", short)  # all that templates of these models take


def test_an_answer_ends_after_its_only_call() -> None:
    form = AnswerForm("hermes", TOOLS, one_call=True)
    parser = form.parser()
    text = f"a {hermes(OSLO_CALL)} {hermes(OSLO_CALL)}"
    ends = [at for at, character in enumerate(text) if (parser.push(character), parser.ended)[1]]
    assert text[: ends[0] + 1].endswith(OSLO_CALL)
    assert read(form, [text]) == {"content": "a", "calls": [("weather", transcripts.OSLO)], "reasoning": ""}


def test_calls_and_arguments_are_bounded() -> None:
    many = read(AnswerForm("hermes", TOOLS), [hermes(OSLO_CALL) * (MAX_CALLS + 1)])
    assert len(many["calls"]) == MAX_CALLS and many["content"] == hermes(OSLO_CALL)
    large = "x" * MAX_ARGUMENT_CHARACTERS
    for form, text in (("hermes", '<tool_call>{"name":"time","arguments":{"'), ("mistral", '[TOOL_CALLS]time[ARGS]{"')):
        found = read(AnswerForm(form, TOOLS), [text + large])
        assert len(found["calls"][0][1]) == MAX_ARGUMENT_CHARACTERS and found["content"] == "xx"


LONG = {
    "arguments": ("hermes", '<tool_call>{"name":"time","arguments":{"a":"', 'x{\\"'),
    "arguments before the name": ("hermes", '<tool_call>{"arguments":{"a":"', "x"),
    "tags": ("hermes", "", "<tool_call>"),
    "calls": ("hermes", "", hermes(OSLO_CALL)),
    "white space": ("hermes", "", " "),
    "lines": ("llama3", "", "{\n"),
    "beginnings of tags": ("llama3", "", "<|"),
    "markers": ("mistral", "", "[TOOL_CALLS]time"),
    "brackets": ("json", '{"arguments":', "["),
    "thoughts": ("", "<think>", "</thin "),
}


@pytest.mark.attack_class(17)
@pytest.mark.parametrize("name", LONG)
def test_time_is_linear_in_the_length(name: str) -> None:
    """A megabyte takes about four times what a quarter of it does; quadratic would be sixteen times."""
    form, begin, repeated = LONG[name]

    def seconds(characters: int) -> float:
        text = begin + repeated * (characters // len(repeated))
        pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
        reader = AnswerForm(form, TOOLS, reasoning=True)
        times = []
        for _ in range(2):
            began = time.thread_time()
            events_of(reader, pieces)
            times.append(time.thread_time() - began)
        return min(times)

    assert seconds(1 << 20) < 10 * seconds(1 << 18) + 0.1


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("<tool_call>{{ tools }}</tool_call>", AnswerFormats("hermes")),
        ("<tool_call> <think> </think>", AnswerFormats("hermes", "qwen3")),
        ("<tool_call><function=x>", AnswerFormats()),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", AnswerFormats("mistral")),
        ("<|start_header_id|> <|python_tag|>", AnswerFormats("llama3")),
        ('<|start_header_id|> {"name": function name, "parameters": …}', AnswerFormats("llama3")),
        ("{{ messages }}", AnswerFormats()),
    ],
)
def test_formats_are_known_by_the_template(template: str, expected: AnswerFormats) -> None:
    assert select_formats(template) == expected
    assert select_formats(template, calls="json", reasoning="none") == AnswerFormats("json")
    assert select_formats(template, calls="none", reasoning="deepseek_r1") == AnswerFormats("", "deepseek_r1")


def test_answers_begin_within_the_reasoning_where_the_prompt_has_its_tag() -> None:
    qwen3, r1 = AnswerFormats("", "qwen3"), AnswerFormats("", "deepseek_r1")
    prompts = {"<|assistant|>\n<think>\n": (True, True), "<think>\n\n</think>\n\n": (False, False), "x": (False, True)}
    assert {prompt: (qwen3.thinking(prompt), r1.thinking(prompt)) for prompt in prompts} == prompts
    assert not AnswerFormats().thinking("<think>")
