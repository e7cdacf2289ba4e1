"""Renders chat messages to a prompt with the model's own Jinja template, in a sandbox.

The language is that of transformers' apply_chat_template: tags, functions, filters and variables are the same. A
template is a stranger's program: one operation of it may take gigabytes, or minutes that no other thread can interrupt.
It is compiled and rendered in a process whose memory and time the system bounds (`http/reading`), never where requests
are served.
"""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Template, meta

from .template_language import TooLarge, environment
from .template_source import NO_TEMPLATE, ONLY_FOR_TOOLS, TemplateSource, shortened

MAX_RENDERED_CHARACTERS = 16 << 20
REASONING = ("reasoning_content", "thinking", "reasoning")  # a message's reasoning; a template reads one of them
_PROBE = "Is the harbour open?"  # a message by which the format of contents is found out
# Variables that the server itself sets.
OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class ChatTemplateError(Exception):
    """The template refused the messages, or cannot be used: one sentence for a client."""


class ChatTemplate:
    """Renders as transformers' apply_chat_template does."""

    def __init__(self, source: str | None, special_tokens: dict[str, str], *, for_tools: str | None = None) -> None:
        """`source`: None without a chat template. `for_tools`: another template, for conversations with tools.

        A `source` that does not parse is not an error here: `problem` has the reason why there is no template for
        conversations without tools, which `render` raises.
        """
        self._special_tokens = special_tokens
        own, _ = _compiled(for_tools)
        self._plain, self.problem = _compiled(source)
        if own is not None and source is None:
            self.problem = ONLY_FOR_TOOLS
        self._for_tools = own or self._plain

    @classmethod
    def of(cls, source: TemplateSource) -> "ChatTemplate":
        return cls(source.plain, source.special_tokens, for_tools=source.for_tools)

    @classmethod
    def read(cls, folder: Path) -> "ChatTemplate":
        return cls.of(TemplateSource.read(folder))

    def refuses(self, *, tools: bool) -> str:
        """Why there is no template for a conversation; "" where there is one."""
        return "" if self._template(tools) else self.problem

    def _template(self, tools: object) -> "_Compiled | None":
        return self._for_tools if tools else self._plain

    def names(self, variable: str, *, tools: bool = False) -> bool:
        """Whether the template uses a variable; it ignores all others."""
        template = self._template(tools)
        return template is not None and variable in template.variables

    def reads_parts(self, *, tools: bool = False) -> bool:
        """Whether the template writes contents that are lists of parts, and none that are texts."""
        template = self._template(tools)
        return template is not None and self._reads_parts(template)

    def _reads_parts(self, template: "_Compiled") -> bool:
        """By what it writes of a message, as llama.cpp finds it out: it may reach a part in many ways."""
        if template.reads_parts is None:
            text, parts = (self._shows(template, content) for content in (_PROBE, [{"type": "text", "text": _PROBE}]))
            template.reads_parts = parts and not text
        return template.reads_parts

    def _shows(self, template: "_Compiled", content: str | list[dict[str, Any]]) -> bool:
        given = {"messages": [{"role": "user", "content": content}], "tools": None, "documents": None}
        try:
            return _PROBE in template.render(self._special_tokens | given | {"add_generation_prompt": True})
        except ChatTemplateError:
            return False

    def mentions(self, text: str, *, tools: bool = False) -> bool:
        """Whether the template's source contains `text`."""
        template = self._template(tools)
        return template is not None and text in template.source

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt.

        Raises:
            ChatTemplateError: there is no usable template, or it refused the messages.
        """
        template = self._template(tools)
        if template is None:
            raise ChatTemplateError(self.problem)
        messages = [_with_reasoning(message) for message in messages]
        mark = secrets.token_hex(16) + " " if continue_final_message else ""
        if mark:
            messages[-1] = messages[-1] | {"content": _marked(messages[-1]["content"], mark)}
        given = {
            "messages": messages,
            "tools": tools or None,
            "documents": documents or None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = template.render(self._special_tokens | dict(variables or {}) | given)
        return _up_to(text, mark) if mark else text


class _Compiled:
    def __init__(self, source: str) -> None:
        language = environment()
        self.source = source
        self.variables = frozenset(meta.find_undeclared_variables(language.parse(source)))
        self._template: Template = language.from_string(source)
        self.reads_parts: bool | None = None  # not known yet

    def render(self, variables: dict[str, Any]) -> str:
        """Renders piece by piece, so that endless output stops at MAX_RENDERED_CHARACTERS.

        Raises:
            ChatTemplateError: the template raised an error, or writes too much.
        """
        pieces, size = [], 0
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_RENDERED_CHARACTERS:
                    raise TooLarge(f"it writes more than {MAX_RENDERED_CHARACTERS} characters")
        except Exception as error:  # an error in a template is not a failure of the server
            raise ChatTemplateError(f"The model's chat template refused the messages: {_short(error)}") from error
        return "".join(pieces)


def _marked(content: str | list[dict[str, Any]], mark: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content + mark
    return [*content[:-1], content[-1] | {"text": content[-1]["text"] + mark}]


def _compiled(source: str | None) -> tuple[_Compiled | None, str]:
    """The compiled template and ""; or None and the reason why there is none."""
    if source is None:
        return None, NO_TEMPLATE
    try:
        return _Compiled(source), ""
    except Exception as error:  # Jinja raises Python's own errors too
        return None, f"The model's chat template is not valid: {_short(error)}. Use /v1/completions."


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Copies a message's reasoning to the names that templates read it by."""
    found = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return message if found is None else {"thinking": found, **message, "reasoning_content": found}


def _up_to(text: str, mark: str) -> str:
    """The prompt up to the end of the final message, which the answer continues."""
    at = text.rfind(mark.strip())
    if at < 0:
        raise ChatTemplateError("The model's chat template does not write the final message, so it cannot go on.")
    # If the template has stripped the mark's trailing blank, it would have stripped the message's trailing space too.
    return text[:at] if text[at : at + len(mark)] == mark else text[:at].rstrip()


def _short(error: Exception) -> str:
    return "it takes too much memory" if isinstance(error, MemoryError) else shortened(error)
