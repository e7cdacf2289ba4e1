"""The part of an answer that one token adds."""

from dataclasses import dataclass

from ...engine.request import FinishReason, Logprobs


@dataclass(frozen=True, slots=True)
class Delta:
    """What one token adds to an answer: its text, which may be empty, and the finish reason of the last one."""

    text: str
    tokens: int
    token: int
    finish: FinishReason | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[Logprobs, ...] = ()  # with the first token
    cached_tokens: int = 0  # tokens of the prompt that the prefix cache had; with the first token
    accepted: int = 0  # 1 if the token was drafted
    rejected: int = 0  # tokens that were drafted and are not in the answer so far; below 0 where they come to be in it
