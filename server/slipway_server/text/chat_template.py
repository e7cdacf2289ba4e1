"""Renders chat messages to a prompt with the model's own Jinja template, in a sandbox.

The language is that of transformers' apply_chat_template: tags, functions, filters and variables are the same.
"""

import json
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Template, meta

from .template_language import TooLarge, environment

log = logging.getLogger("slipway.text")

MAX_RENDERED_CHARACTERS = 16 << 20
MAX_REASON_CHARACTERS = 300  # of a template's error message in a response
REASONING = ("reasoning_content", "thinking", "reasoning")  # a message's reasoning; a template reads one of them
# Variables that the server itself sets.
OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class ChatTemplateError(Exception):
    """The template refused the messages, or cannot be used: one sentence for a client."""


class ChatTemplate:
    """Renders as transformers' apply_chat_template does."""

    def __init__(self, source: str | None, special_tokens: dict[str, str], *, for_tools: str | None = None) -> None:
        """`source`: None without a chat template. `for_tools`: another template, for conversations with tools.

        A `source` that does not parse is not an error here: `problem` has the reason, which `render` raises.
        """
        self._special_tokens = special_tokens
        self._plain, self.problem = _compiled(source)
        self._for_tools = _compiled(for_tools)[0] or self._plain

    @classmethod
    def read(cls, folder: Path) -> "ChatTemplate":
        """Reads the template of a model folder. Never fails: without a usable template a model still completes text."""
        try:
            found = cls._read(folder)
        except (OSError, ValueError) as error:
            found = cls(None, {})
            found.problem = f"The model's chat template cannot be read: {_short(error)}."
        if found.problem:
            log.warning("no chat completions", extra={"reason": found.problem})
        return found

    @classmethod
    def _read(cls, folder: Path) -> "ChatTemplate":
        path = folder / "tokenizer_config.json"
        config: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
        if not isinstance(config, dict):
            raise ValueError("tokenizer_config.json is no object")
        named = _named(config.get("chat_template"))
        beside = folder / "chat_template.jinja"
        if beside.is_file():
            named = {"default": beside.read_text(encoding="utf-8")}
        special_tokens = {name: text for name in config if (text := _token_text(config, name)) is not None}
        return cls(named.get("default"), special_tokens, for_tools=named.get("tool_use"))

    def names(self, variable: str, *, tools: bool = False) -> bool:
        """Whether the template uses a variable; it ignores all others."""
        template = self._for_tools if tools else self._plain
        return template is not None and variable in template.variables

    @property
    def source(self) -> str:
        """The source of the template for conversations with tools; "" without a template."""
        return self._for_tools.source if self._for_tools else ""

    def mentions(self, text: str) -> bool:
        """Whether the template's source contains `text`."""
        return self._plain is not None and text in self._plain.source

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
        """The prompt. Rendering may take long: call it in a `TextPool`.

        Raises:
            ChatTemplateError: there is no usable template, or it refused the messages.
        """
        template = self._for_tools if tools else self._plain
        if template is None or self.problem:
            raise ChatTemplateError(self.problem)
        messages = [_with_reasoning(message) for message in messages]
        mark = secrets.token_hex(16) + " " if continue_final_message else ""
        if mark:
            messages[-1] = messages[-1] | {"content": messages[-1]["content"] + mark}
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


def _compiled(source: str | None) -> tuple[_Compiled | None, str]:
    """The compiled template and ""; or None and the reason why there is none."""
    if source is None:
        return None, "This model has no chat template: use /v1/completions."
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
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_REASON_CHARACTERS else text[:MAX_REASON_CHARACTERS] + "…"


def _named(template: Any) -> dict[str, str]:
    """Templates by name. `template` is the text of the default one, or a list of named ones, as in older folders."""
    if isinstance(template, str):
        return {"default": template}
    if not isinstance(template, list):
        return {}
    pairs = [(entry.get("name"), entry.get("template")) for entry in template if isinstance(entry, dict)]
    return {name: source for name, source in pairs if isinstance(name, str) and isinstance(source, str)}


def _token_text(config: dict[str, Any], name: str) -> str | None:
    value = config[name]
    if not name.endswith("_token"):
        return None
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None
