"""Chat messages to a prompt, by the model's own Jinja template in a sandbox."""

import datetime
import json
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplateError(Exception):
    """The template refused the messages, or there is none."""


class ChatTemplate:
    """Renders as transformers' apply_chat_template does: same environment, same functions, same variables."""

    def __init__(self, source: str | None, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source) if source else None
        except TemplateError as error:
            raise ChatTemplateError(f"The model's chat template is not valid: {error}.") from error
        self._special_tokens = special_tokens

    @classmethod
    def read(cls, folder: Path) -> "ChatTemplate":
        path = folder / "tokenizer_config.json"
        config: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
        beside = folder / "chat_template.jinja"
        source = beside.read_text() if beside.is_file() else _default(config.get("chat_template"))
        return cls(source, {name: text for name in config if (text := _token_text(config, name))})

    def render(self, messages: list[dict[str, Any]]) -> str:
        if self._template is None:
            raise ChatTemplateError("This model has no chat template: use /v1/completions.")
        try:
            return self._template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._special_tokens
            )
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            raise ChatTemplateError(f"The model's chat template refused the messages: {error}") from error


def _default(template: Any) -> str | None:
    """Older folders keep several templates in a list."""
    if isinstance(template, list):
        return next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _token_text(config: dict[str, Any], name: str) -> str | None:
    value = config[name]
    if not name.endswith("_token"):
        return None
    return value.get("content") if isinstance(value, dict) else value if isinstance(value, str) else None


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise TemplateError(message)
