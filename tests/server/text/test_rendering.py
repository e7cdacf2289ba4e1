"""Chats as clients send them, rendered as by transformers: texts or parts, and calls as they came."""

import json
from typing import Any

import pytest

from slipway_server.text.chat import Chat, ChatRefused
from slipway_server.text.chat_template import ChatTemplate
from slipway_server.text.rendering import render
from tests.server.text import templates

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
ARGUMENTS = {"to": "Åland", "n": [1, None, True]}
CUT = '{"port": "Jaf'
TOOLS = [
    {"type": "function", "function": {"name": "ferry", "description": "Finds one.", "parameters": {"type": "object"}}}
]
PARTS = [{"type": "text", "text": "Is it dark?"}]


def rendered(source: str, messages: list[dict[str, Any]], **more: Any) -> str:
    return render(ChatTemplate(source, TOKENS), Chat(messages=messages, **more), "m")


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "function": {"arguments": arguments, "name": "ferry"}, "type": "function"}


def with_call(arguments: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "Which?"},
        {"role": "assistant", "tool_calls": [call(arguments)], "content": "One:"},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "user", "content": "And?"},
    ]


def test_a_template_that_reads_parts_gets_parts() -> None:
    """reports.md, 5: it lost the text of the user without an error, and a guard would have judged an empty chat."""
    for content in ("Is it dark?", PARTS):
        assert rendered(templates.FIRST_PART, [{"role": "user", "content": content}]) == "<user>Is it dark?\n<verdict>"
    two = [*PARTS, {"type": "text", "text": "Yes."}]
    text = rendered(
        templates.PARTS_AND_CALLS, [{"role": "user", "content": two}, {"role": "assistant", "content": None}]
    )
    assert text == "<user>Is it dark?|Yes.|<assistant>|"


def test_the_final_message_of_parts_is_continued() -> None:
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "text", "text": "The sh"}]},
    ]
    text = rendered(templates.PART_LOOP, messages, continue_final_message=True, add_generation_prompt=False)
    assert text == "<s><|user|>x<|assistant|>The sh"


@pytest.mark.parametrize("name", templates.READ_TEXTS)
def test_a_template_that_reads_texts_gets_texts(name: str) -> None:
    template = ChatTemplate(templates.READ_TEXTS[name], TOKENS)
    assert not template.reads_parts()
    assert "Is it dark?" in render(template, Chat(messages=[{"role": "user", "content": PARTS}]), "m")


def test_a_template_that_fails_for_both_reads_texts() -> None:
    template = ChatTemplate("{{ raise_exception('no') }}", TOKENS)
    assert not template.reads_parts()


def test_a_refusal_is_the_text_of_its_message() -> None:
    """OpenAI's clients send back the messages that they got: parts, or a field beside a content that is null."""
    part = {"type": "refusal", "refusal": "No."}
    for message in ({"content": [part]}, {"content": None, "refusal": "No."}, {"content": "No.", "refusal": None}):
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", **message}]
        assert "assistant\nNo.<|im_end|>" in rendered(templates.CHATML, messages)
        assert rendered(templates.PARTS_AND_CALLS, messages).endswith("<assistant>No.|")
    with pytest.raises(ChatRefused, match="only an assistant's"):
        rendered(templates.CHATML, [{"role": "user", "content": "x", "refusal": "No."}])


def test_calls_keep_the_order_of_the_clients_fields() -> None:
    assert json.dumps([call(ARGUMENTS)], ensure_ascii=False) in rendered(templates.WHOLE_CALLS, with_call(ARGUMENTS))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (templates.TEXT_OR_JSON, f'"arguments":{CUT}}}</tool_call>'),
        (templates.JOINED, f"<call>ferry\n{CUT}</call>"),
        (templates.WHOLE_CALLS, json.dumps({"arguments": CUT, "name": "ferry"})),
        (templates.TAGGED, f"<function=ferry><parameter=arguments>{CUT}</parameter>"),
    ],
)
def test_a_call_that_max_tokens_cut_is_text_in_later_turns(template: str, expected: str) -> None:
    """reports.md, 9: each later turn was refused; OpenAI looks at no arguments of the history."""
    assert expected in rendered(template, with_call(CUT))


def chats() -> list[list[dict[str, Any]]]:
    user = {"role": "user", "content": "Is {{ 7 * 7 }} a ship? <|im_end|>"}
    return [
        [user],
        [{"role": "user", "content": PARTS}],
        [{"role": "user", "content": ""}],
        [user, {"role": "assistant", "content": " So. "}, {"role": "user", "content": "\n漢字 "}],
        [{"role": "system", "content": " S "}, user],
        [{"role": "system", "content": PARTS}, user, {"role": "assistant", "content": PARTS}, user],
        [user, {"role": "assistant", "content": "a", "thinking": "b"}, {"role": "user", "content": "c"}],
        [user, {"role": "assistant", "content": "a", "reasoning_content": "b"}, user],
        [user, user],
        [user, {"role": "assistant", "content": ""}],
        [{"role": "user", "content": "named", "name": "Ada"}],
        with_call(ARGUMENTS),
        with_call({}),
        [*with_call(ARGUMENTS), *with_call({"to": "x"})],
    ]  # fmt: skip


def as_read(message: dict[str, Any], *, parts: bool, texts: bool) -> dict[str, Any]:
    """A message as users of transformers write it for such a template."""
    content = message["content"]
    if parts and isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not parts and not isinstance(content, str):
        content = "\n".join(part["text"] for part in content)
    message = message | {"content": content}
    if texts and "tool_calls" in message:
        calls = json.loads(json.dumps(message["tool_calls"]))
        for one in calls:
            one["function"]["arguments"] = json.dumps(one["function"]["arguments"], ensure_ascii=False)
        message["tool_calls"] = calls
    if "reasoning_content" in message or "thinking" in message:
        found = message.get("reasoning_content", message.get("thinking"))
        message |= {"thinking": found, "reasoning_content": found}
    return message


@pytest.mark.integration
@pytest.mark.parametrize("name", templates.READ_TEXTS | templates.READ_PARTS)
def test_prompts_are_those_of_transformers_for_what_the_template_reads(name: str) -> None:
    """Twelve styles, each with 14 chats, tools or documents or none, with a prompt for the answer or without: 1,008."""
    from transformers.utils.chat_template_utils import render_jinja_template

    source = (templates.READ_TEXTS | templates.READ_PARTS)[name]
    template = ChatTemplate(source, TOKENS)
    for chat in chats():
        read = [as_read(message, parts=name in templates.READ_PARTS, texts=name == "joined") for message in chat]
        for more in ({}, {"tools": TOOLS}, {"documents": [{"title": "t", "text": "x"}]}):
            for add in (True, False):
                given: dict[str, Any] = {"add_generation_prompt": add, **more}
                if any(not template.names(field) for field in more):
                    with pytest.raises(ChatRefused, match="is not supported"):
                        render(template, Chat(messages=chat, **given), "m")
                    continue
                try:
                    (expected,), _ = render_jinja_template([read], chat_template=source, **given, **TOKENS)
                except Exception:
                    with pytest.raises(ChatRefused):
                        render(template, Chat(messages=chat, **given), "m")
                else:
                    assert render(template, Chat(messages=chat, **given), "m") == expected
