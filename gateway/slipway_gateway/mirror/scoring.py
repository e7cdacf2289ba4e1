"""Teacher forcing: how likely stable's response is for another server, by one prefill and no generation (pure).

The prompt followed by stable's response is sent with `prompt_logprobs` (vLLM's field, which our server has too). The
rank of each token shows whether that server would have chosen another one. Two texts that differ early differ in all
that follows; the number of such flips stays small.
"""

from dataclasses import dataclass

import msgspec
from msgspec import Raw

from ..wire.json_values import ABSENT, does_nothing, is_list, text_of
from .shadow_request import ShadowRequest
from .transcript import ChoiceTexts

# A response has some 80 bytes for each token, a prompt four: reading the largest response takes half a millisecond.
MAX_SCORED_BYTES = 4 << 10
# What a chat template writes after the response: its end, and the beginning of the next one. The text is looked for in
# no more than that, because the search takes the product of both lengths, and the server's text may have a megabyte.
_MAX_AFTER_CHARACTERS = 2 << 10


class _Prompt(msgspec.Struct):
    """The request whose response is scored."""

    model: Raw = ABSENT
    prompt: Raw = ABSENT
    messages: Raw = ABSENT
    echo: Raw = ABSENT


class _Token(msgspec.Struct, gc=False):
    rank: int
    decoded_token: str
    logprob: float | None = 0.0

    @property
    def is_first_choice(self) -> bool:
        """Ranks begin at 1. A server that computes NaN has no choice: it writes null, or a rank of 0."""
        return self.rank == 1 and self.logprob is not None


class _ScoredPrompt(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Token] | None] | None = None


class _ScoredResponse(_ScoredPrompt):
    choices: list[_ScoredPrompt] = []


_PROMPT = msgspec.json.Decoder(_Prompt)
_ANSWER = msgspec.json.Decoder(_ScoredResponse)


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Tokens of a text, and those that are not the first choice of the server that scored it.

    `choices`: where the others are, each by its first and its last character in the text, the latter exclusive.
    """

    count: int
    flips: int
    choices: tuple[tuple[int, int], ...] = ()

    def lost(self, other: "ScoredTokens") -> int:
        """How many of these first choices are not first choices of another server that scored the same text."""
        found = set(other.choices)
        return sum(choice not in found for choice in self.choices)


def build_scoring_request(request: ShadowRequest, texts: ChoiceTexts) -> ShadowRequest | None:
    """The request that scores stable's response; None unless it is one short text after one prompt."""
    if len(texts) != 1 or not texts[0] or len(request.body) + len(texts[0].encode()) > MAX_SCORED_BYTES:
        return None
    fields = _PROMPT.decode(request.body)
    prompt, messages = text_of(fields.prompt), fields.messages
    common: dict[str, object] = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    common["model"] = text_of(fields.model)
    if request.path == "/v1/completions" and prompt is not None and does_nothing(fields.echo):
        body = common | {"prompt": prompt + texts[0]}
    elif request.path == "/v1/chat/completions" and is_list(messages):
        body = common | {"messages": _followed_by(messages, {"role": "assistant", "content": texts[0]})}
    else:
        return None
    return ShadowRequest(request.path, request.headers, msgspec.json.encode(body), request.isolation, request.adapter)


def _followed_by(messages: Raw, message: dict[str, str]) -> Raw:
    """A list with one message more; those before it keep their bytes."""
    before = bytes(messages)[:-1].rstrip()
    comma = b"" if before == b"[" else b","
    return Raw(before + comma + msgspec.json.encode(message) + b"]")


def count_flips(response: bytes, texts: ChoiceTexts) -> int | None:
    """Tokens of stable's response that are not the first choice of the scoring server; None if it scored none."""
    found = count_tokens(response, texts)
    return found.flips if found else None


def count_tokens(response: bytes, texts: ChoiceTexts) -> ScoredTokens | None:
    """Tokens of stable's response, and flips among them, by the scoring server; None if it scored none."""
    try:
        decoded = _ANSWER.decode(response)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    scored = decoded.prompt_logprobs or (decoded.choices[0].prompt_logprobs if decoded.choices else None) or []
    tokens = [next(iter(entry.values())) for entry in scored if entry]
    whole = "".join(token.decoded_token for token in tokens)
    begin = whole.rfind(texts[0], max(0, len(whole) - len(texts[0]) - _MAX_AFTER_CHARACTERS))
    if begin < 0:
        return None
    count, at, end, choices = 0, 0, begin + len(texts[0]), []
    for token in tokens:
        after = at + len(token.decoded_token)
        if at < end and after > begin:
            count += 1
            if token.is_first_choice:
                choices.append((at - begin, after - begin))
        at = after
    return ScoredTokens(count, count - len(choices), tuple(choices))
