"""Teacher forcing: how likely another server finds stable's answer, told by one prefill and no generation (pure).

The prompt with stable's answer behind it is asked for `prompt_logprobs` (vLLM's field, which our server has too): each
token's rank says whether that server would have gone on otherwise there. One answer that parts early differs in all
that follows; its flips still are a few.
"""

from typing import Any

import msgspec

from .shadow_request import Ask
from .transcript import Said

# A server tells some 80 bytes for each token of four: what is read at once takes half a millisecond.
MAX_SCORED_BYTES = 4 << 10


class _Token(msgspec.Struct, gc=False):
    rank: int
    decoded_token: str


class _Scored(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Token] | None] | None = None


class _Answer(_Scored):
    choices: list[_Scored] = []


_ANSWER = msgspec.json.Decoder(_Answer)


def scoring(ask: Ask, said: Said) -> Ask | None:
    """The request that has stable's answer scored; None where there is no one text behind one prompt, or too much."""
    if len(said) != 1 or not said[0] or len(ask.body) + len(said[0].encode()) > MAX_SCORED_BYTES:
        return None
    asked: dict[str, Any] = msgspec.json.decode(ask.body)
    prompt, messages = asked.get("prompt"), asked.get("messages")
    common = {"model": asked.get("model"), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    if ask.path == "/v1/completions" and isinstance(prompt, str) and not asked.get("echo"):
        body = common | {"prompt": prompt + said[0]}
    elif ask.path == "/v1/chat/completions" and isinstance(messages, list):
        body = common | {"messages": [*messages, {"role": "assistant", "content": said[0]}]}
    else:
        return None
    return Ask(ask.path, ask.headers, msgspec.json.encode(body))


def flips(answer: bytes, said: Said) -> int | None:
    """Tokens of stable's answer that are not the first choice of the server that scored them; None if it did not."""
    try:
        told = _ANSWER.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    scored = told.prompt_logprobs or (told.choices[0].prompt_logprobs if told.choices else None) or []
    tokens = [next(iter(entry.values())) for entry in scored if entry]
    begin = "".join(token.decoded_token for token in tokens).rfind(said[0])
    if begin < 0:
        return None
    found, at, end = 0, 0, begin + len(said[0])
    for token in tokens:
        inside = at < end and at + len(token.decoded_token) > begin
        found += inside and token.rank > 1
        at += len(token.decoded_token)
    return found
