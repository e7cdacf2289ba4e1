"""The tools of a chat: their fields, how answers with calls are read, and the grammar of calls that must come."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from slipway_process.serving.errors import invalid

from ...engine.request import Grammar
from ...text.answers.answer import PLAIN, AnswerForm
from ...text.answers.call_parser import MAX_CALLS
from ...text.answers.selection import AnswerFormats
from .bodies import unsupported
from .json_schemas import demanded
from .structured import WHITE_SPACE, bounded, check_depth

MAX_TOOLS = 128  # OpenAI's own limit
MAX_TOOLS_BYTES, MAX_DESCRIPTION_CHARACTERS = 1 << 20, 1 << 16
# Keywords of schemas whose values are data, in which "$ref" means nothing.
DATA = frozenset({"const", "enum", "default", "examples"})

FunctionName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionDefinition(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    name: FunctionName
    description: Annotated[str, Meta(max_length=MAX_DESCRIPTION_CHARACTERS)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Struct, kw_only=True, forbid_unknown_fields=True):
    name: FunctionName


class NamedTool(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    function: NamedFunction


class AllowedTools(Struct, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolChoice(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"):
    """A part of the tools may be called. Others stay in the prompt, so that its beginning is the same each time."""

    allowed_tools: AllowedTools


Tools = Annotated[list[ToolDefinition], Meta(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedToolChoice


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The fields of a chat that are about tools."""

    tools: Sequence[ToolDefinition]
    choice: ToolChoice | None = None
    parallel: bool = True

    @property
    def callable_tools(self) -> list[ToolDefinition]:
        """The tools that an answer may call."""
        if (names := self._chosen_names) is not None:
            return [tool for tool in self.tools if tool.function.name in names]
        return [] if self.choice == "none" else list(self.tools)

    @property
    def _chosen_names(self) -> set[str] | None:
        """The names in `tool_choice`; None where it has none."""
        if isinstance(self.choice, NamedTool):
            return {self.choice.function.name}
        if isinstance(self.choice, AllowedToolChoice):
            return {tool.function.name for tool in self.choice.allowed_tools.tools}
        return None

    @property
    def must_call(self) -> bool:
        if isinstance(self.choice, AllowedToolChoice):
            return self.choice.allowed_tools.mode == "required"
        return self.choice == "required" or isinstance(self.choice, NamedTool)

    @property
    def one_call(self) -> bool:
        return not self.parallel or isinstance(self.choice, NamedTool)

    def for_template(self) -> list[dict[str, Any]] | None:
        """The tools as templates expect them; None without tools. `strict` is left out: it is for servers alone."""
        functions = [msgspec.structs.replace(tool.function, strict=None) for tool in self.tools]
        return [{"type": "function", "function": msgspec.to_builtins(function)} for function in functions] or None

    def check(self, *, grammar: Grammar | None, ignore_eos: bool, beams: bool) -> None:
        """Raises HttpError for tools that contradict one another or another field, or are too large."""
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise invalid("Two tools have the same name.", "tools")
        if unknown := sorted((self._chosen_names or set()) - set(names)):
            raise invalid(f"tool_choice has {unknown[0]!r}, which is not in tools.", "tool_choice")
        if self.must_call and not self.callable_tools:
            raise invalid("tool_choice needs a call, and there are no tools.", "tool_choice")
        for tool in self.tools:
            _check_parameters(tool.function)
        if self.tools and len(msgspec.json.encode(self.tools)) > MAX_TOOLS_BYTES:
            raise invalid(f"tools have more than {MAX_TOOLS_BYTES} bytes: make them smaller.", "tools")
        if not self.callable_tools:
            return
        if grammar:
            message = f"{grammar.param} does not go with tools that may be called: set tool_choice to none."
            raise invalid(message, grammar.param)
        if ignore_eos:
            raise invalid("ignore_eos does not go with tools that may be called.", "ignore_eos")
        if beams and not (self.parallel or self.must_call):
            raise invalid("parallel_tool_calls false does not go with beam search.", "parallel_tool_calls")


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How the answers of a request are read, and the grammar that their calls follow."""

    form: AnswerForm = PLAIN
    grammar: Grammar | None = None


PLAIN_ANSWERS = AnswerPlan()


def plan_answers(use: ToolUse, formats: AnswerFormats, own: Grammar | None) -> AnswerPlan:
    """How a request's answers are read. `own`: its own grammar. HttpError for tools that this model cannot call."""
    tools, reasoning = use.callable_tools, bool(formats.reasoning)
    if not tools:
        # A grammar describes the whole answer: it leaves no room for reasoning.
        return AnswerPlan(AnswerForm(reasoning=reasoning and own is None))
    names, short_ids = frozenset(tool.function.name for tool in tools), formats.calls == "mistral"
    if use.must_call:
        kind = formats.calls if formats.calls in ("hermes", "llama3") else "json"
        form = AnswerForm(kind, names, short_ids=short_ids)
        return AnswerPlan(form, _grammar_of_calls(kind, tools, one=use.one_call))
    if not formats.calls:
        raise unsupported(
            "tools",
            "This server reads no calls out of this model's answers: set tool_choice to required, to a function or to "
            "none, or start the server with --tool-call-parser.",
        )
    form = AnswerForm(formats.calls, names, reasoning=reasoning, one_call=use.one_call, short_ids=short_ids)
    strict = any(tool.function.strict for tool in tools)
    return AnswerPlan(form, _grammar_of_strict_tools(formats.calls, tools) if strict else None)


def begin_answer(plan: AnswerPlan, formats: AnswerFormats, prompt: str) -> AnswerPlan:
    """The plan for answers to this prompt, after which a model may be in the middle of its reasoning already."""
    if not plan.form.reasoning:
        return plan
    return replace(plan, form=replace(plan.form, thinking=formats.thinking(prompt)))


def _check_parameters(function: FunctionDefinition) -> None:
    parameters = function.parameters or {}
    if parameters.get("type", "object") != "object":
        raise invalid(f"The parameters of {function.name} must be a schema of the type object.", "tools")
    check_depth(parameters, "tools")


# -- grammars


def _grammar_of_calls(kind: str, tools: Sequence[ToolDefinition], *, one: bool) -> Grammar:
    """The grammar of an answer that is a call, or several calls unless `one`."""
    call = _schema(tools, "parameters" if kind == "llama3" else "arguments")
    if kind == "json" and not one:
        definitions = call.pop("$defs")
        call = {"type": "array", "items": call, "minItems": 1, "maxItems": MAX_CALLS, "$defs": definitions}
    if kind == "json" or (kind == "llama3" and one):
        return _json_schema(call)
    separator, body = ('"; "', "object") if kind == "llama3" else ('"\\n"', _HERMES)
    more = "" if one else f" ({separator} call){{0,{MAX_CALLS - 1}}}"
    return _lark(f"start: call{more}\ncall: {body}", call)


def _grammar_of_strict_tools(kind: str, tools: Sequence[ToolDefinition]) -> Grammar:
    """The grammar of any text in which calls of strict tools have valid arguments, and other calls any object."""
    if kind != "hermes":
        raise unsupported(
            "tools", "strict is supported with tool_choice required or a function: for this model not with auto."
        )
    loose = msgspec.json.decode(b'{"type": "object"}')
    strict = [
        tool
        if tool.function.strict
        else ToolDefinition(type="function", function=msgspec.structs.replace(tool.function, parameters=loose))
        for tool in tools
    ]
    rules = f'start: (lead rest)* TEXT\nlead[lazy]: TEXT "<tool_call>"\nrest: {_HERMES_REST}\nTEXT: /(.|\\n)*/'
    return _lark(rules, _schema(strict, "arguments"))


_HERMES_REST = r'"\n" object "\n</tool_call>"'
_HERMES = rf'"<tool_call>" {_HERMES_REST}'


def _lark(rules: str, schema: dict[str, Any]) -> Grammar:
    """The grammar of Lark `rules`, in which `object` is a text of the schema."""
    text = msgspec.json.encode(schema | _GUIDANCE).decode()
    return bounded(Grammar("grammar", f"%llguidance {{}}\n{rules}\nobject: %json {text}\n", "tools"))


def _json_schema(schema: dict[str, Any]) -> Grammar:
    return bounded(Grammar("json_schema", msgspec.json.encode(schema | _GUIDANCE).decode(), "tools"))


_GUIDANCE = {"x-guidance": {"whitespace_pattern": WHITE_SPACE}}


def _schema(tools: Sequence[ToolDefinition], key: str) -> dict[str, Any]:
    """The schema of one call of any tool. Each tool's schema is a definition, to which its references are moved."""
    calls, definitions = [], {}
    for number, tool in enumerate(tools):
        place = f"tool{number}"
        definitions[place] = {"type": "object"} | _moved(demanded(tool.function.parameters or {}), f"#/$defs/{place}")
        properties = {"name": {"const": tool.function.name}, key: {"$ref": f"#/$defs/{place}"}}
        calls.append(
            {"type": "object", "properties": properties, "required": ["name", key], "additionalProperties": False}
        )
    return {"anyOf": calls, "$defs": definitions}


def _moved(schema: dict[str, Any], place: str) -> dict[str, Any]:
    """A schema whose references to itself lead to its new place, without llguidance's options: clients set none."""

    def move(value: Any) -> Any:
        if isinstance(value, list):
            return [move(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {name: moved(name, item) for name, item in value.items()}

    def moved(name: str, item: Any) -> Any:
        if name == "$ref" and isinstance(item, str) and item.startswith("#"):
            return place + item[1:]
        return item if name in DATA and not isinstance(item, dict) else move(item)

    return {name: moved(name, item) for name, item in schema.items() if name not in ("$schema", "$id", "x-guidance")}
