"""Fields of the bodies of requests that this server does not implement, and the prompts that are in others."""

from typing import Any, TypeVar

from msgspec import Struct

from slipway_process.serving.bodies import checked
from slipway_process.serving.errors import HttpError, invalid

from .fields import MAX_PROMPTS, Prompts, Tokens
from .sampling import FIELDS

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


def checked_body(fields: dict[str, Any], kind: type[S]) -> S:
    """A body as `kind`; on OpenAI's endpoints (those that allow unknown fields) also checks UNSUPPORTED.

    Optional fields that are null are removed from `fields`.
    """
    if not kind.__struct_config__.forbid_unknown_fields:
        _refuse_unsupported(fields, kind)
    return checked(fields, kind)


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
