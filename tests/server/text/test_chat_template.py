"""Chat templates: transformers' language, no way out of the sandbox, and limits."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipway_server.text.chat_template import MAX_RENDERED_CHARACTERS, ChatTemplate, ChatTemplateError
from slipway_server.text.template_source import TemplateSource
from tests.server.text import templates

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = [{"role": "user", "content": "Is {{ 7 * 7 }} a ship? <|im_end|>"}]


@pytest.mark.finding(10)
def test_safety_10_generation_tags_and_loop_controls_are_known() -> None:
    """They were unknown tags, and the server ended at start: SmolLM3, Phi-4-reasoning."""
    template = ChatTemplate(templates.GENERATION, TOKENS)
    assert not template.problem
    messages = [
        {"role": "system", "content": "Be "},
        {"role": "system", "content": "brief."},
        *USER,
        {"role": "assistant", "content": "\nYes.", "reasoning": "hm"},
    ]
    assert template.render(messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nIs {{ 7 * 7 }} a ship? <|im_end|><|im_end|>\n"
        "<think>hm</think><|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.render(USER, variables={"enable_thinking": False}).endswith("<think></think>")
    assert template.render(USER, variables={"reasoning_effort": "low"}).endswith("(low)")
    documents = [{"title": "t", "text": "x"}]
    assert "[0] t: x" in template.render(USER, documents=documents)


def test_calls_and_answers_of_tools() -> None:
    call = {"type": "function", "id": "c1", "function": {"name": "ferry", "arguments": {"to": "Åland", "n": 2}}}
    messages = [
        *USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "ok", "tool_call_id": "c1"},
    ]
    tools = [{"type": "function", "function": {"name": "ferry"}}]
    text = ChatTemplate(templates.HEADERS, TOKENS).render(messages, tools=tools)
    assert '{"name": "ferry", "parameters": {"to": "Åland", "n": 2}}<|eot_id|>' in text
    assert "tool<|end_header_id|>c1|ok<|eot_id|>" in text and '"name": "ferry"\n' in text


def test_the_variables_of_a_template_are_found() -> None:
    template = ChatTemplate(templates.GENERATION, TOKENS)
    assert all(template.names(name) for name in ("enable_thinking", "documents", "reasoning_effort"))
    assert not template.names("tools") and not template.names("thinking")


def test_a_separate_template_for_tools(tmp_path: Path) -> None:
    named = [
        {"name": "default", "template": "plain {{ messages|length }}"},
        {"name": "tool_use", "template": "tools {{ tools|length }}"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = ChatTemplate.read(tmp_path)
    assert (template.render(USER), template.render(USER, tools=[{}])) == ("plain 1", "tools 1")
    assert not template.names("tools") and template.names("tools", tools=True)


def test_the_default_template_works_when_the_template_for_tools_does_not_parse() -> None:
    template = ChatTemplate("{{ messages|length }}", TOKENS, for_tools="{% nonsense %}")
    assert not template.problem and template.render(USER) == "1" and not template.names("tools", tools=True)


def test_the_final_message_is_continued() -> None:
    messages = [*USER, {"role": "assistant", "content": "The ship is "}]
    given: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    plain = ChatTemplate(templates.CHATML, TOKENS).render(messages, **given)
    assert plain.endswith("<|im_start|>assistant\nThe ship is ")
    assert ChatTemplate(templates.ALTERNATING, TOKENS).render(messages, **given).endswith("model\nThe ship is")
    with pytest.raises(ChatTemplateError, match="does not write the final message"):
        ChatTemplate("nothing", TOKENS).render(messages, **given)


@pytest.mark.finding(10)
@pytest.mark.parametrize(
    "source", [None, "{% nonsense %}", "{% for %}", "{{", "{% break %}", "{% generation %}", "{{ x | nofilter }}"]
)
def test_safety_10_a_chat_with_a_template_that_does_not_parse_is_refused(source: str | None) -> None:
    template = ChatTemplate(source, TOKENS)
    assert "/v1/completions" in template.problem
    with pytest.raises(ChatTemplateError, match="chat template"):
        template.render(USER)


@pytest.mark.parametrize("files", [{"chat_template.jinja": "{% nonsense %}"}, {"chat_template.jinja": ""}, {}])
def test_a_folder_without_a_usable_template_is_read(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    template = ChatTemplate.read(tmp_path)
    assert bool(template.refuses(tools=False)) == (files.get("chat_template.jinja") != "")


def test_a_template_for_tools_alone_renders_conversations_with_tools(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("T{{ tools|length }}")
    template = ChatTemplate.read(tmp_path)
    assert template.render(USER, tools=[{}]) == "T1" and "send tools" in template.refuses(tools=False)
    assert not TemplateSource.read(tmp_path).missing


@pytest.mark.attack_class(6)
@pytest.mark.parametrize("source", templates.ESCAPES)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    """What is out of reach is refused, or is nothing: it never becomes an object of Python's, not even as text."""
    messages = [dict(message) for message in USER]
    try:
        text = ChatTemplate(source, TOKENS).render(messages)
    except ChatTemplateError:
        text = ""
    assert messages == USER and not {"<", "_", "{"} & set(text)


@pytest.mark.attack_class(6)
@pytest.mark.parametrize("template", templates.ALL.values(), ids=templates.ALL)
def test_messages_are_never_templates(template: str) -> None:
    for escape in (*templates.ESCAPES, "{% raw %}", "{{ bos_token }}", "{#"):
        text = ChatTemplate(template, TOKENS).render([{"role": "user", "content": escape}])
        assert escape.strip() in text


@pytest.mark.attack_class(6, 17)
@pytest.mark.parametrize(
    "source",
    [
        "{{ 2.0 ** 100000 }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}ships and ships{% endfor %}{% endfor %}",
        "{% for a in range(10 ** 9) %}{% endfor %}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{{ 1 / 0 }}",
        "{{ messages[7].role.upper() }}",
        "{{ none + 1 }}",
        "{{ [] | first | tojson }}",
    ],
)
def test_a_template_that_makes_too_much_or_fails_is_a_refusal(source: str) -> None:
    with pytest.raises(ChatTemplateError) as refusal:
        ChatTemplate(source, TOKENS).render(USER)
    assert len(str(refusal.value)) < 500


def test_the_output_of_a_template_is_limited() -> None:
    content = [{"role": "user", "content": "x" * (MAX_RENDERED_CHARACTERS // 2)}]
    with pytest.raises(ChatTemplateError, match="writes more than"):
        ChatTemplate("{{ messages[0].content }}{{ messages[0].content }}{{ messages[0].content }}", TOKENS).render(
            content
        )


@pytest.mark.integration
@pytest.mark.parametrize("template", templates.ALL.values(), ids=templates.ALL)
def test_prompts_equal_those_of_transformers(template: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    call = {"type": "function", "function": {"name": "f", "arguments": {"a": [1, None, True], "b": "é\n"}}}
    chats: list[list[dict[str, Any]]] = [
        USER,
        [*USER, {"role": "assistant", "content": " So. "}, {"role": "user", "content": "\n漢字 "}],
        [{"role": "system", "content": " S "}, *USER],
        [*USER, {"role": "assistant", "content": "", "tool_calls": [call]}],
        [*USER, {"role": "assistant", "content": "a", "thinking": "b"}, {"role": "user", "content": "c"}],
    ]
    ours = ChatTemplate(template, TOKENS)
    for chat in chats:
        for more in ({}, {"tools": [{"name": "f"}]}, {"documents": [{"title": "t", "text": "x"}]}):
            for add in (True, False):
                given: dict[str, Any] = {"add_generation_prompt": add, **more}
                try:
                    (expected,), _ = render_jinja_template([chat], chat_template=template, **given, **TOKENS)
                except Exception:
                    with pytest.raises(ChatTemplateError):
                        ours.render(chat, **given)
                else:
                    assert ours.render(chat, **given) == expected


@pytest.mark.integration
@pytest.mark.parametrize("template", [templates.CHATML, templates.ALTERNATING, templates.GENERATION])
@pytest.mark.parametrize("content", ["The ship is ", "The ship", "  x\n\n"])
def test_final_messages_go_on_as_in_transformers(template: str, content: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    chat = [*USER, {"role": "assistant", "content": content}]
    given: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
    (expected,), _ = render_jinja_template([chat], chat_template=template, **given, **TOKENS)
    assert ChatTemplate(template, TOKENS).render(chat, **given) == expected
