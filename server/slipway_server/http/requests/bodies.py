"""Bodies of requests: read within a time, decoded, checked, and refused by the name of the field."""

import asyncio
import re
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from slipway_process import json_bounds
from slipway_process.byte_order_mark import without_mark

from ..errors import HttpError, invalid
from .fields import MAX_PROMPTS, Prompts, Tokens
from .nulls import drop_nulls
from .sampling import FIELDS

BODY_S = 120.0  # for a whole body
BODY_IDLE_S = 30.0  # longest pause between two pieces of a body

WITHOUT_EFFECT = frozenset({"metadata", "safety_identifier"})  # fields for who stores chats: nothing is stored here
# Fields of OpenAI's and vLLM's APIs that would change the answer and that this server does not implement, with their
# neutral values. A request type that has such a field accepts it. Fields that neither of the two APIs has are ignored.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "echo": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "truncate_prompt_tokens": (),
    "chat_template": (),
    "guided_decoding_backend": (),
    "structural_tag": (),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "kv_transfer_params": ({},),
    "vllm_xargs": ({},),
    "thinking_token_budget": (),
    "include_reasoning": (True,),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "metadata": ({},),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "parallel_tool_calls": (True,),
    "spaces_between_special_tokens": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "prompt_embeds": (),
    "dimensions": (),
    "normalize": (True,),
    "use_activation": (True,),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "cache_salt": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "documents": ([],),
    "reasoning_effort": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (True,),
    # Fields that only one or two endpoints have.
    **dict.fromkeys(("messages", "prompt", "input", "max_completion_tokens", "guided_whitespace_pattern"), ()),
    **dict.fromkeys(("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    **{name: field.neutral for name, field in FIELDS.items()},
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "encoding_format": ("float",),
}

S = TypeVar("S", bound=Struct)


async def body_of(http: web.Request) -> bytes:
    """The body, which must come without long pauses. Raises HttpError 408 when it does not."""
    try:
        # Most bodies came with their head, and need no timer.
        first = http.content.read_nowait() if http.content.is_eof() else b""
        _check_size(http, len(first))
        return first if http.content.at_eof() else await _rest(http, first)
    except TimeoutError:
        raise HttpError(408, "The body of the request did not come in time.", code="body_timeout") from None
    except web.RequestPayloadError:
        raise invalid("The body of the request is not encoded as its headers declare.") from None


async def _rest(http: web.Request, first: bytes) -> bytes:
    pieces, size = [first], len(first)
    async with asyncio.timeout(BODY_S):
        while not http.content.at_eof():
            async with asyncio.timeout(BODY_IDLE_S):
                piece = await http.content.readany()
            pieces.append(piece)
            size += len(piece)
            _check_size(http, size)
    return b"".join(pieces)


def _check_size(http: web.Request, size: int) -> None:
    if size > http.client_max_size:
        raise web.HTTPRequestEntityTooLarge(max_size=http.client_max_size, actual_size=size)


def parse(body: bytes, kind: type[S]) -> S:
    return checked(decoded(body), kind)


def decoded(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Of a name that occurs twice the last value counts, here as in the gateway."""
    try:
        json_bounds.check(body)
        fields = msgspec.json.decode(without_mark(body))
    except json_bounds.TooManyValues as error:
        raise invalid(f"The body {error}.") from None
    except RecursionError:
        raise invalid("The body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise invalid(f"The body is not JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise invalid("The body must be a JSON object.")
    return fields


def checked(fields: dict[str, Any], kind: type[S]) -> S:
    """A body as `kind`; on OpenAI's endpoints (those that allow unknown fields) also checks UNSUPPORTED.

    Optional fields that are null are removed from `fields`.
    """
    drop_nulls(fields, kind)
    if not kind.__struct_config__.forbid_unknown_fields:
        _refuse_unsupported(fields, kind)
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _naming(str(error)) from None


def prompts_of(given: Prompts, param: str) -> list[str | Tokens]:
    """The prompts that a field holds: one text, one list of token ids, or several of these."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given[0], int) and len(given) > MAX_PROMPTS:
        raise invalid(f"{param} has {len(given)} prompts; {MAX_PROMPTS} is the limit.", param)
    ids = [item for item in given if isinstance(item, int)]
    if ids and len(ids) < len(given):
        raise invalid(f"{param} mixes token ids with other things.", param)
    return [ids] if ids else [item for item in given if not isinstance(item, int)]


def _refuse_unsupported(fields: dict[str, Any], kind: type[Struct]) -> None:
    for name, neutral in UNSUPPORTED.items():
        value = None if name in kind.__struct_fields__ else fields.get(name)
        if value is not None and not any(value == allowed and type(value) is type(allowed) for allowed in neutral):
            # 1.0 for 1 is neutral, too; True for 1 is a mistake.
            if isinstance(value, float) and value in neutral:
                continue
            raise unsupported(name, f"{name} is not supported by this server.")


def unsupported(param: str, message: str) -> HttpError:
    return HttpError(400, message, param=param, code="unsupported_parameter")


def _naming(message: str) -> HttpError:
    """msgspec reports "Expected `int`, got `str` - at `$.max_tokens`"; clients also need the name of the field."""
    quoted = re.search(r"(?:required|unknown) field `([^`]+)`", message)
    path = re.search(r"`\$\.?([^`\[.]*)", message)
    param = (path.group(1) if path else "") or (quoted.group(1) if quoted else "") or None
    return invalid(f"{message}.", param)
