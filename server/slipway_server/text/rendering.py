"""Renders a chat: the variables that the template gets, and its messages in the form that it takes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .chat import Chat, ChatRefused, Json, MessageForm, template_messages
from .chat_template import OWN_VARIABLES, ChatTemplate, ChatTemplateError


def render(template: ChatTemplate, chat: Chat, model: str) -> str:
    """The prompt of a chat. `model`: its name, for sentences.

    Raises:
        ChatRefused: for what the template does not take.
    """
    if reason := template.refuses(tools=bool(chat.tools)):
        raise ChatRefused(reason, code="no_chat_template")
    variables = _variables(template, chat, model)
    forms = _forms(template, chat)
    for form in forms:
        try:
            return _rendered(template, chat, variables, template_messages(chat.messages, form))
        except ChatTemplateError as error:
            refused = error
    raise ChatRefused(str(refused)) from None


def _forms(template: ChatTemplate, chat: Chat) -> list[MessageForm]:
    """The forms in which the template may take the messages, the likeliest first."""
    tools = bool(chat.tools)
    developer = "developer" if template.mentions("developer", tools=tools) else "system"
    form = MessageForm(developer, template.reads_parts(tools=tools))
    if not any(message.get("tool_calls") for message in chat.messages):
        return [form]
    return [form, replace(form, arguments="texts"), replace(form, arguments="held")]


def _rendered(template: ChatTemplate, chat: Chat, variables: Mapping[str, Any], messages: list[Json]) -> str:
    return template.render(
        messages,
        tools=chat.tools,
        documents=chat.documents,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        variables=variables,
    )


def _variables(template: ChatTemplate, chat: Chat, model: str) -> dict[str, Any]:
    """The template's variables. Refuses those that the template does not use, which would be ignored silently."""
    variables, tools = dict(chat.variables), bool(chat.tools)
    for name in variables:
        if name in OWN_VARIABLES or not template.names(name, tools=tools):
            sentence = f"The chat template of {model} has no variable {name!r} to be set."
            raise ChatRefused(sentence, "chat_template_kwargs", "unsupported_parameter")
    if chat.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", chat.reasoning_effort)
    for name in ("tools", "documents", "reasoning_effort"):
        needed = getattr(chat, name) and not (name == "tools" and chat.tools_optional)
        if needed and not template.names(name, tools=tools):
            sentence = f"{name} is not supported: the chat template of {model} has none."
            raise ChatRefused(sentence, name, "unsupported_parameter")
    return variables
