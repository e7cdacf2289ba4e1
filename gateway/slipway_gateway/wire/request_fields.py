"""The fields of a request that routing reads: model, sticky key and tenant.

The body is forwarded byte for byte, unless its model name differs from the one that the server knows.
"""

import hashlib
import hmac
import math
import re
from collections.abc import Collection, Mapping

import msgspec
from msgspec import Raw
from multidict import istr

from . import members
from .errors import invalid
from .json_values import (
    ABSENT,
    does_nothing,
    integer_of,
    is_null,
    is_text,
    is_true,
    read_value,
    text_of,
)
from .responses import EMPTY, INVALID_JSON, REPETITION, TRUNCATED

# Session headers that agents and routers already send, the most specific first.
SESSION_HEADERS = (
    "x-session-id",
    "x-session-token",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "session-id",
    "x-litellm-session-id",
)
_SESSION_NAMES = tuple(map(istr, SESSION_HEADERS))  # a lookup of such a name folds no case
# SDKs insist on a key where the server needs none; these must not tie all of their users to one revision.
PLACEHOLDER_KEYS = frozenset(
    {"", "empty", "none", "null", "dummy", "not-needed", "unused", "no-key", "sk-no-key-required"}
)
# Prefix of the sticky key of a request without a session.
ALONE = "request:"
# Those of keys that name a conversation or a user, and not only the client.
_PERSONAL = ("session:", "user:")
STICKY_SOURCES = ("session", "user", "key")
TENANT_SOURCES = ("key", "user")
TENANT_BYTES = 16
SHARE_SOURCES = ("key", "address")
JSON_FORMATS = ("json_object", "json_schema")
FREE_FORMATS = (None, "text", "json_object")
# Any limit of the client's may cut an answer short; one below this may leave no text at all.
TINY_LIMIT_TOKENS = 16
_NOTHING_EXCUSED: frozenset[str] = frozenset()
# A longer key of a split or name of a tenant counts by its hash.
_MAX_KEY_BYTES = 1024
# Texts of a body, names of members too. A pass over more of them holds all other requests for a tenth of a second: of a
# name above that is repeated each value is kept for a moment. Servers of this project take an eighth of that.
MAX_TEXTS = 1 << 19
# A longer format has a schema: nothing else of it is long.
_MAX_FORMAT_BYTES = 64 << 10
_STRICT = re.compile(rb'"strict"')


class RequestFields(msgspec.Struct):
    """Fields that the gateway looks at. Their types are the server's business, except that of `model`: a value that
    the gateway cannot use counts as absent, and goes to the server as it is.

    No object is made of a value before it is used, and what is used is short.
    """

    model: str | None = None
    stream: Raw = ABSENT
    stream_options: Raw = ABSENT
    user: Raw = ABSENT
    prompt_cache_key: Raw = ABSENT
    conversation: Raw = ABSENT
    params: Raw = ABSENT  # of /api/v1/models/{name}/predict, with a version
    response_format: Raw = ABSENT
    text: Raw = ABSENT  # of /v1/responses, with its format
    # What a client decides of its response: only whether it is there, or a number, is looked at.
    max_tokens: Raw = ABSENT
    max_completion_tokens: Raw = ABSENT
    max_output_tokens: Raw = ABSENT
    stop: Raw = ABSENT
    stop_token_ids: Raw = ABSENT
    stop_tokens: Raw = ABSENT  # texts, as `stop`, of /v1/generate and its like
    logit_bias: Raw = ABSENT
    allowed_token_ids: Raw = ABSENT
    bad_words: Raw = ABSENT
    ignore_eos: Raw = ABSENT
    min_tokens: Raw = ABSENT
    # What the text of the response must be, as vLLM names it.
    structured_outputs: Raw = ABSENT
    guided_json: Raw = ABSENT
    guided_regex: Raw = ABSENT
    guided_choice: Raw = ABSENT
    guided_grammar: Raw = ABSENT
    # A call that must come, or whose arguments are strict, follows a schema too.
    tools: Raw = ABSENT
    tool_choice: Raw = ABSENT
    # How many responses there are, and how many texts the model computes.
    n: Raw = ABSENT
    best_of: Raw = ABSENT
    prompt: Raw = ABSENT
    messages: Raw = ABSENT
    instructions: Raw = ABSENT  # of /v1/responses, as `input`
    input: Raw = ABSENT
    prompt_embeds: Raw = ABSENT
    query: Raw = ABSENT
    documents: Raw = ABSENT
    text_1: Raw = ABSENT
    text_2: Raw = ABSENT
    # Of engines that know no tenants: the gateway sets them (`isolation`).
    cache_salt: Raw = ABSENT
    priority: Raw = ABSENT
    # Whether the response is by chance, of routes with a cache.
    temperature: Raw = ABSENT
    seed: Raw = ABSENT

    @property
    def streams(self) -> bool:
        """Whether the client requested a stream."""
        return is_true(self.stream)

    @property
    def lacks_usage(self) -> bool:
        """Whether a stream would end without its usage, and `with_usage` can change that."""
        if is_null(self.stream_options):
            return True
        options = read_value(_OPTIONS, self.stream_options)
        return options is not None and not is_true(options.include_usage)

    @property
    def version(self) -> str:
        """`params.version`; "" without one."""
        params = read_value(_PARAMS, self.params)
        return (text_of(params.version) or "") if params else ""

    @property
    def wants_json(self) -> bool:
        """Whether the text of the response is to be JSON."""
        if self.response_format is ABSENT and self.text is ABSENT:
            return False  # most requests
        return self._format in JSON_FORMATS

    @property
    def _format(self) -> str | None:
        """The type of the response's format; None for none, and for what is no type."""
        if self.response_format is not ABSENT:
            return _type_of(self.response_format)
        options = None if self.text is ABSENT else read_value(_TEXT, self.text, _MAX_FORMAT_BYTES)
        return _type_of(options.format if options else self.text)

    @property
    def excused(self) -> frozenset[str]:
        """Kinds of failure that the request itself provokes: they are no evidence against a version.

        A token limit gives truncated text, a low one also empty text. Forbidden, forced or stop tokens may give no
        text, a loop, or text that is no JSON. A schema or a grammar may demand a text without end, a loop, or (a
        grammar) none.
        """
        limits, shaping = (self.max_tokens, self.max_completion_tokens, self.max_output_tokens), self._shaping
        if limits.count(ABSENT) == len(limits) and shaping.count(ABSENT) == len(shaping):
            return _NOTHING_EXCUSED
        limit = min((count for limit in limits if (count := integer_of(limit)) is not None), default=math.inf)
        ends = _given(self.stop, self.stop_token_ids, self.stop_tokens)
        steers = _given(self.logit_bias, self.allowed_token_ids, self.bad_words, self.ignore_eos, self.min_tokens)
        grammar = _given(
            self.structured_outputs, self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar
        )
        grammar = grammar or self._dictates_calls
        dictated = grammar or self._format not in FREE_FORMATS
        found = (
            (TRUNCATED, limit < math.inf or steers or dictated),
            (EMPTY, limit < TINY_LIMIT_TOKENS or ends or steers or grammar),
            (REPETITION, steers or dictated),
            (INVALID_JSON, ends or steers),
        )
        return frozenset(kind for kind, holds in found if holds)

    @property
    def _shaping(self) -> tuple[Raw, ...]:
        """All fields that may shape the text of the response."""
        return (
            self.response_format, self.text, self.stop, self.stop_token_ids, self.stop_tokens, self.logit_bias,
            self.allowed_token_ids, self.bad_words, self.ignore_eos, self.min_tokens, self.structured_outputs,
            self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar, self.tools, self.tool_choice,
        )  # fmt: skip

    @property
    def _dictates_calls(self) -> bool:
        if not _given(self.tools) or (choice := _choice_of(self.tool_choice)) == "none":
            return False
        return choice != "auto" or _STRICT.search(self.tools) is not None


def _given(*fields: Raw) -> bool:
    """Whether any of these fields has a value that does something."""
    return any(field is not ABSENT and not does_nothing(field) for field in fields)


class _Format(msgspec.Struct):
    type: Raw = ABSENT


class _Text(msgspec.Struct):
    format: Raw = ABSENT


class _Allowed(msgspec.Struct):
    mode: Raw = ABSENT


class _ToolChoice(msgspec.Struct):
    """An object of `tool_choice`: of a chat with `allowed_tools`, or of a response with its `mode`."""

    mode: Raw = ABSENT
    allowed_tools: Raw = ABSENT


class _StreamOptions(msgspec.Struct):
    include_usage: Raw = ABSENT


class _Conversation(msgspec.Struct):
    id: Raw = ABSENT


class _Params(msgspec.Struct):
    version: Raw = ABSENT


_DECODER = msgspec.json.Decoder(RequestFields)
_FORMAT = msgspec.json.Decoder(_Format)
_TEXT = msgspec.json.Decoder(_Text)
_TOOL_CHOICE = msgspec.json.Decoder(_ToolChoice)
_ALLOWED = msgspec.json.Decoder(_Allowed)
_OPTIONS = msgspec.json.Decoder(_StreamOptions)
_CONVERSATION = msgspec.json.Decoder(_Conversation)
_PARAMS = msgspec.json.Decoder(_Params)


def _type_of(format_: Raw) -> str | None:
    if len(format_) > _MAX_FORMAT_BYTES:
        return "json_schema"
    found = read_value(_FORMAT, format_, _MAX_FORMAT_BYTES)
    return text_of(found.type) if found else None


def _choice_of(tool_choice: Raw) -> str:
    """`none`, `auto` or `required`: whether an answer may have calls, and whether it must."""
    if not _given(tool_choice):
        return "auto"
    if (text := text_of(tool_choice)) is not None:
        return text
    choice = read_value(_TOOL_CHOICE, tool_choice, _MAX_FORMAT_BYTES)
    mode = choice.mode if choice else ABSENT
    if choice and choice.allowed_tools is not ABSENT:
        allowed = read_value(_ALLOWED, choice.allowed_tools, _MAX_FORMAT_BYTES)
        mode = allowed.mode if allowed else ABSENT
    return text_of(mode) or "required"


def parse(body: bytes) -> RequestFields:
    """The fields of a body, in one pass over it.

    Raises:
        RequestError: it is no JSON object, it has more than MAX_TEXTS texts, or `model` is no text (400).
    """
    # No more quotes than these are within a text, so that so many texts are there for certain.
    if len(body) > 2 * MAX_TEXTS and (body.count(b'"') - body.count(rb"\"")) // 2 > MAX_TEXTS:
        raise invalid("too_many_values", f"The request body has more than {MAX_TEXTS} texts and names of members.")
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise invalid("invalid_type", f"The request body is not as expected: {error}.", param="model") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid("invalid_json", f"The request body is not valid JSON: {error}.") from None


def with_model(body: bytes, fields: RequestFields, model: str) -> bytes:
    """The body of these fields with another model name; all other values keep their bytes."""
    return members.with_member(body, b"model", msgspec.json.encode(model), msgspec.json.encode(fields.model))


def with_usage(body: bytes, fields: RequestFields) -> bytes:
    """The body of a stream that lacks its usage, with the usage requested; all other values keep their bytes."""
    before, options = fields.stream_options, b'{"include_usage":true}'
    if not is_null(before):
        now = _OPTIONS.decode(before).include_usage
        options = members.with_member(bytes(before), b"include_usage", b"true", now)
    return members.with_member(body, b"stream_options", options, before)


def sticky_key(
    headers: Mapping[str, str], fields: RequestFields, request_id: str, sources: Collection[str], own: str = ""
) -> str:
    """The key of the split: session header, then body fields, then API key, else this request alone.

    `own`: takes the place of the API key, for clients that the gateway knows.
    """
    if "session" in sources:
        for name in _SESSION_NAMES:
            if value := headers.get(name):
                return f"session:{value}"
    if "user" in sources:
        for named in (fields.user, fields.prompt_cache_key, _conversation(fields)):
            if named is not ABSENT and (who := _name(named)):
                return f"user:{who}"
    if "key" in sources and own:
        return own
    if "key" in sources and _api_key(headers):
        # The key itself goes nowhere, not even into a hash that is not cryptographic.
        return client(headers, "", ("key",))
    return f"{ALONE}{request_id}"


def person_of(key: str) -> str:
    """The conversation or the user that a sticky key names; "" for a key of a client or of one request."""
    return key if key.startswith(_PERSONAL) else ""


def tenant(headers: Mapping[str, str], fields: RequestFields, sources: Collection[str], salt: str) -> str:
    """Pseudonym of the tenant in 32 hexadecimal digits; empty when it is unknown.

    The API key comes first: a client must not become many tenants by naming many users.
    """
    if "key" in sources and (key := _api_key(headers)):
        return pseudonym(f"key:{key}", salt)
    if "user" in sources and (name := _name(fields.user)):
        return pseudonym(f"user:{name}", salt)
    return ""


def user_of(fields: RequestFields) -> str:
    """The user that the body names; "" where it names none."""
    return _name(fields.user)


def client(headers: Mapping[str, str], owner: str, sources: Collection[str]) -> str:
    """The client that memory shares are counted for: the API key, else the owner of the address.

    The gateway does not check the key: leave it out of `sources` if clients may invent keys.
    """
    if "key" in sources and (key := _api_key(headers)):
        return f"key:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return f"address:{owner}"


def pseudonym(name: str, salt: str) -> str:
    """A tenant's or client's name as servers see it: TENANT_BYTES of a keyed hash (HMAC-SHA256), in hexadecimal."""
    return hmac.digest(salt.encode(), name.encode("utf-8", "surrogatepass"), "sha256")[:TENANT_BYTES].hex()


def _name(value: Raw) -> str:
    """A name, or of a long one the hash of how it is written; "" where the value is no text."""
    if len(value) > _MAX_KEY_BYTES and is_text(value):
        return f"sha256:{hashlib.sha256(value).hexdigest()}"
    return text_of(value) or ""


def _conversation(fields: RequestFields) -> Raw:
    found = None if fields.conversation is ABSENT else read_value(_CONVERSATION, fields.conversation)
    return found.id if found else fields.conversation


def _api_key(headers: Mapping[str, str]) -> str | None:
    given = headers.get("authorization")
    if given is None:
        return None
    scheme, _, key = given.partition(" ")
    key = key.strip()
    return key if scheme.lower() == "bearer" and key.lower() not in PLACEHOLDER_KEYS else None
