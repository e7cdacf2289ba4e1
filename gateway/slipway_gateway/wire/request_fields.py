"""The fields of a request that routing reads: model, sticky key and tenant.

The body is forwarded byte for byte, unless its model name differs from the one that the server knows.
"""

import hashlib
import hmac
import math
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from multidict import istr

from .errors import RequestError, invalid
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
STICKY_SOURCES = ("session", "user", "key")
TENANT_SOURCES = ("key", "user")
TENANT_BYTES = 16
SHARE_SOURCES = ("key", "address")
JSON_FORMATS = ("json_object", "json_schema")
FREE_FORMATS = (None, "text", "json_object")
# Any limit of the client's may cut an answer short; one below this may leave no text at all.
TINY_LIMIT_TOKENS = 16
_ABSENT = msgspec.Raw()
_UNNAMED = (None, None, None)
_NOTHING_EXCUSED: frozenset[str] = frozenset()
_NOTHING = frozenset((b"", b"null", b"false", b"0", b"[]", b"{}", b'""'))


class RequestFields(msgspec.Struct):
    """Fields that the gateway looks at; their types are the server's business, except `model`."""

    model: str | None = None
    stream: Any = None
    stream_options: Any = None
    n: Any = None
    user: Any = None
    prompt_cache_key: Any = None
    conversation: Any = None
    # As it was written: the schema in it may be long, and only its type is looked at.
    response_format: msgspec.Raw = _ABSENT
    text: msgspec.Raw = _ABSENT  # of /v1/responses, with its format
    # What a client decides of its response: only whether it is there, and a number of tokens, is looked at.
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    stop: msgspec.Raw = _ABSENT
    stop_token_ids: msgspec.Raw = _ABSENT
    logit_bias: msgspec.Raw = _ABSENT
    allowed_token_ids: msgspec.Raw = _ABSENT
    bad_words: msgspec.Raw = _ABSENT
    ignore_eos: msgspec.Raw = _ABSENT
    min_tokens: msgspec.Raw = _ABSENT
    # What the text of the response must be, as vLLM names it.
    structured_outputs: msgspec.Raw = _ABSENT
    guided_json: msgspec.Raw = _ABSENT
    guided_regex: msgspec.Raw = _ABSENT
    guided_choice: msgspec.Raw = _ABSENT
    guided_grammar: msgspec.Raw = _ABSENT
    # A call that must come, or whose arguments are strict, follows a schema too.
    tools: msgspec.Raw = _ABSENT
    tool_choice: msgspec.Raw = _ABSENT

    @property
    def output_limits(self) -> tuple[Any, ...]:
        """Numbers of output tokens that the request sets itself, or whatever it wrote there."""
        return (self.max_tokens, self.max_completion_tokens, self.max_output_tokens)

    @property
    def wants_usage(self) -> bool:
        """Whether the stream is to end with its usage."""
        return isinstance(self.stream_options, dict) and self.stream_options.get("include_usage") is True

    @property
    def wants_json(self) -> bool:
        """Whether the text of the response is to be JSON."""
        if self.response_format is _ABSENT and self.text is _ABSENT:
            return False  # most requests
        return self._format in JSON_FORMATS

    @property
    def _format(self) -> Any:
        try:
            if self.response_format is not _ABSENT:
                return _FORMAT.decode(self.response_format).type
            found = None if self.text is _ABSENT else _TEXT.decode(self.text).format
            return found.type if found else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    @property
    def excused(self) -> frozenset[str]:
        """Kinds of failure that the request itself provokes: they are no evidence against a version.

        A token limit gives truncated text, a low one also empty text. Forbidden, forced or stop tokens may give no
        text, a loop, or text that is no JSON. A schema or a grammar may demand a text without end, a loop, or (a
        grammar) none.
        """
        limits, shaping = self.output_limits, self._shaping
        if limits == (None, None, None) and shaping.count(_ABSENT) == len(shaping):
            return _NOTHING_EXCUSED
        limit = min((limit for limit in limits if isinstance(limit, int)), default=math.inf)
        ends = _given(self.stop, self.stop_token_ids)
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
    def _shaping(self) -> tuple[msgspec.Raw, ...]:
        """All fields that may shape the text of the response."""
        return (
            self.response_format, self.text, self.stop, self.stop_token_ids, self.logit_bias, self.allowed_token_ids,
            self.bad_words, self.ignore_eos, self.min_tokens, self.structured_outputs, self.guided_json,
            self.guided_regex, self.guided_choice, self.guided_grammar, self.tools, self.tool_choice,
        )  # fmt: skip

    @property
    def _dictates_calls(self) -> bool:
        if not _given(self.tools) or bytes(self.tool_choice).strip() == b'"none"':
            return False
        forced = _given(self.tool_choice) and bytes(self.tool_choice).strip() != b'"auto"'
        return forced or b'"strict"' in bytes(self.tools)


def _given(*fields: msgspec.Raw) -> bool:
    """Whether any of these fields has a value that does something."""
    return any(bytes(field).strip() not in _NOTHING for field in fields if field is not _ABSENT)


class _Format(msgspec.Struct):
    type: Any = None


class _Text(msgspec.Struct):
    format: _Format | None = None


_DECODER = msgspec.json.Decoder(RequestFields)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FORMAT = msgspec.json.Decoder(_Format)
_TEXT = msgspec.json.Decoder(_Text)


def parse(body: bytes) -> RequestFields:
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise invalid("invalid_type", f"The request body is not as expected: {error}.", param="model") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_json(error) from None


def _no_json(error: Exception) -> RequestError:
    return invalid("invalid_json", f"The request body is not valid JSON: {error}.")


def with_model(body: bytes, model: str) -> bytes:
    """A body that `parse` let through, with another model name; all other values keep their bytes.

    Raises:
        RequestError: the name of a field is no text. `parse` skips fields that it does not know.
    """
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_json(error) from None
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)


def with_usage(body: bytes, fields: RequestFields) -> bytes:
    """The body of a stream, with its usage requested; all other values keep their bytes."""
    if fields.stream_options is None and b'"stream_options"' not in body:
        # The usual case: nothing is parsed again.
        return body.rstrip()[:-1] + b',"stream_options":{"include_usage":true}}'
    options = fields.stream_options if isinstance(fields.stream_options, dict) else {}
    written = _FIELDS.decode(body)
    written["stream_options"] = msgspec.Raw(msgspec.json.encode(options | {"include_usage": True}))
    return msgspec.json.encode(written)


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
        named = (fields.user, fields.prompt_cache_key, fields.conversation)
        if named != _UNNAMED:
            for value in (*named[:2], _conversation(fields)):
                if isinstance(value, str) and value:
                    return f"user:{value}"
    if "key" in sources and own:
        return own
    if "key" in sources and _api_key(headers):
        # The key itself goes nowhere, not even into a hash that is not cryptographic.
        return client(headers, "", ("key",))
    return f"{ALONE}{request_id}"


def tenant(headers: Mapping[str, str], fields: RequestFields, sources: Collection[str], salt: str) -> str:
    """Pseudonym of the tenant in 32 hexadecimal digits; empty when it is unknown.

    The API key comes first: a client must not become many tenants by naming many users.
    """
    if "key" in sources and (key := _api_key(headers)):
        return pseudonym(f"key:{key}", salt)
    if "user" in sources and isinstance(fields.user, str) and fields.user:
        return pseudonym(f"user:{fields.user}", salt)
    return ""


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


def _conversation(fields: RequestFields) -> Any:
    conversation = fields.conversation
    return conversation.get("id") if isinstance(conversation, dict) else conversation


def _api_key(headers: Mapping[str, str]) -> str | None:
    given = headers.get("authorization")
    if given is None:
        return None
    scheme, _, key = given.partition(" ")
    key = key.strip()
    return key if scheme.lower() == "bearer" and key.lower() not in PLACEHOLDER_KEYS else None
