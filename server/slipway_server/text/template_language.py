"""The language of chat templates: Jinja in a sandbox, with what transformers adds to it and nothing else.

A template comes from a model repository, and the messages that it renders come from a client: neither is trusted. The
sandbox keeps a template from Python's own objects. It bounds neither memory nor time: any text method, filter or
comparison may take gigabytes or minutes in one step. The process bounds these.
"""

import datetime
import json
from collections.abc import Callable
from typing import Any, ClassVar

from jinja2 import Environment, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class TooLarge(TemplateError):
    """A template writes too much."""


class GenerationTag(Extension):
    """{% generation %} marks the assistant's text for training: here the body of the tag is rendered unchanged."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


class TemplateNamespace(Namespace):
    """Jinja's namespace, which refuses names that begin with an underscore (Python's own names)."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # The same signature as Jinja's class, without `self`, so that namespace(self=...) is allowed.
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class TemplateDict:
    """Python's dict as a function, so that templates cannot reach the class itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def environment() -> Environment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
    made.filters["tojson"] = _to_json
    made.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
        "dict": TemplateDict(),
        "namespace": TemplateNamespace,
    }
    return made


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no {name!r}: names must not begin with an underscore")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise TemplateError(message)
