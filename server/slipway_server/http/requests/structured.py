"""Turns the structured-output fields of OpenAI's and vLLM's APIs into the grammar that the engine follows."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from slipway_process.serving.errors import HttpError, invalid

from ...engine.request import Grammar
from .json_schemas import demanded
from .sampling import OpenAISampling

MAX_GRAMMAR_BYTES = 120 << 10
MAX_DEPTH = 64  # of a JSON schema
MAX_CHOICES, MAX_CHOICE_CHARACTERS = 1024, 4096
MAX_PATTERN_CHARACTERS = 128
# White space between the parts of JSON: bounded, because a model could otherwise write white space without end.
WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,20}"

GrammarText = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_BYTES)]
Schema = dict[str, Any] | bool
SchemaText = dict[str, Any] | GrammarText  # vLLM takes a schema as a text, too
ChoiceTexts = Annotated[
    list[Annotated[str, Meta(max_length=MAX_CHOICE_CHARACTERS)]], Meta(min_length=1, max_length=MAX_CHOICES)
]
Pattern = Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN_CHARACTERS)]


class JsonSchema(Struct, kw_only=True, forbid_unknown_fields=True):
    """`strict` is always true: an answer that is complete is valid."""

    name: Annotated[str, Meta(min_length=1, max_length=64)] = "schema"
    description: Annotated[str, Meta(max_length=8192)] | None = None  # for readers: it changes nothing
    schema: Schema = {}
    strict: bool | None = None


class ResponseFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`: one of the first five."""

    json: SchemaText | None = None
    regex: GrammarText | None = None
    choice: ChoiceTexts | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: Pattern | None = None


class Structured(OpenAISampling, kw_only=True):
    """The fields of every generating endpoint of OpenAI's that say what an answer must be."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaText | None = None
    guided_regex: GrammarText | None = None
    guided_choice: ChoiceTexts | None = None
    guided_grammar: GrammarText | None = None
    guided_whitespace_pattern: Pattern | None = None

    @property
    def grammar(self) -> Grammar | None:
        """The grammar of these fields, or None. Raises HttpError for fields that contradict others or are too large."""
        found = [*self._of_format(), *self._of_structured_outputs(), *self._of_guided()]
        if len(found) > 1:
            raise invalid(f"{found[0].param} and {found[1].param} do not go together: use one of them.", found[1].param)
        if not found and self.guided_whitespace_pattern:
            raise invalid("guided_whitespace_pattern is for guided_json.", "guided_whitespace_pattern")
        return found[0] if found else None

    def _of_format(self) -> list[Grammar]:
        wanted = self.response_format
        if wanted is None:
            return []
        if (wanted.type == "json_schema") != (wanted.json_schema is not None):
            raise invalid("response_format has a json_schema exactly where its type is json_schema.", "response_format")
        if wanted.type == "text":
            return []
        schema = wanted.json_schema.schema if wanted.json_schema else {"type": "object"}
        return [of_schema(schema, "response_format")]

    def _of_structured_outputs(self) -> list[Grammar]:
        wanted, param = self.structured_outputs, "structured_outputs"
        if wanted is None:
            return []
        white_space = "" if wanted.disable_any_whitespace else wanted.whitespace_pattern or WHITE_SPACE
        found = [] if wanted.json is None else [of_schema(_parsed(wanted.json, param), param, white_space)]
        found += [of_schema({"type": "object"}, param, white_space)] if wanted.json_object else []
        found += _of_texts(param, wanted.regex, wanted.choice, wanted.grammar)
        if len(found) != 1:
            raise invalid(f"{param} needs one of json, regex, choice, grammar and json_object.", param)
        if found[0].kind != "json_schema" and white_space != WHITE_SPACE:
            raise invalid(f"White space in {param} is for json and json_object.", param)
        return found

    def _of_guided(self) -> list[Grammar]:
        found = []
        if self.guided_json is not None:
            schema = _parsed(self.guided_json, "guided_json")
            found.append(of_schema(schema, "guided_json", self.guided_whitespace_pattern or WHITE_SPACE))
        found += _of_texts("guided_regex", self.guided_regex, None, None)
        found += _of_texts("guided_choice", None, self.guided_choice, None)
        return found + _of_texts("guided_grammar", None, None, self.guided_grammar)


def of_schema(schema: Schema, param: str, white_space: str = WHITE_SPACE) -> Grammar:
    """The grammar of a JSON schema. `white_space`: a regular expression; "" allows none.

    Raises:
        HttpError: the schema is too large or too deep.
    """
    check_depth(schema, param)
    schema = demanded(schema)
    if isinstance(schema, dict):
        # llguidance reads its own options there: what a client wrote must not weaken the schema.
        flexible = {"whitespace_pattern": white_space} if white_space else {"whitespace_flexible": False}
        schema = schema | {"x-guidance": flexible}
    return bounded(Grammar("json_schema", msgspec.json.encode(schema).decode(), param))


def _of_texts(param: str, regex: str | None, choice: list[str] | None, grammar: str | None) -> list[Grammar]:
    texts = {
        "regex": regex,
        "choice": None if choice is None else msgspec.json.encode(choice).decode(),
        "grammar": grammar,
    }
    return [bounded(Grammar(kind, text, param)) for kind, text in texts.items() if text is not None]


def _parsed(schema: dict[str, Any] | str, param: str) -> Schema:
    if isinstance(schema, dict):
        return schema
    try:
        parsed: Schema = msgspec.json.decode(schema, type=Schema)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise invalid(f"{param} is no JSON schema: write an object.", param) from None
    return parsed


def bounded(grammar: Grammar) -> Grammar:
    if len(grammar.text.encode("utf-8", "surrogatepass")) > MAX_GRAMMAR_BYTES:
        raise invalid(f"{grammar.param} has more than {MAX_GRAMMAR_BYTES} bytes: make it smaller.", grammar.param)
    return grammar


def check_depth(schema: Any, param: str) -> None:
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise invalid(f"{param} is nested more than {MAX_DEPTH} levels deep: make it flatter.", param)
        inner = [item.values() if isinstance(item, dict) else item for item in level if not isinstance(item, bool)]
        level = [item for items in inner for item in items if isinstance(item, dict | list)]


def unusable(reason: str, param: str) -> HttpError:
    """The error for a grammar that the engine cannot follow."""
    return invalid(reason, param or None, code="invalid_grammar")
