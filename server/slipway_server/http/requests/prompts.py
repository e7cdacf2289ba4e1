"""Makes prompts of token ids of texts and token ids, and refuses those that do not fit."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipway_process.model_folder.checkpoint import Checkpoint
from slipway_process.serving.errors import HttpError, invalid, too_long

from ...text.answers.selection import CONTENT_ONLY, AnswerFormats
from ...text.chat import Chat
from ...text.template_source import TemplateSource
from ...text.tokenizer import Tokenizer
from .prompt import Prompt, PromptLimits

MAX_REQUEST_TOKENS = 1 << 20  # of all prompts of a request, where one prompt cannot have more

Given = str | Sequence[int]  # what a client sends as a prompt


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    version: str
    checkpoint: Checkpoint
    context_tokens: int
    tokenizer: Tokenizer
    template: TemplateSource
    formats: AnswerFormats = CONTENT_ONLY
    speculates: bool = False  # whether the engine drafts tokens
    loaded_at: int = field(default_factory=lambda: int(time.time()))

    @property
    def embedding_rows(self) -> int:
        """The size of the model's vocabulary by config.json. A tokenizer may have more tokens."""
        config = self.checkpoint.config
        text = config.get("text_config")
        rows = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
        return rows if isinstance(rows, int) and rows > 0 else self.tokenizer.vocabulary_size


class PromptEncoder:
    """Makes prompts for one model. Raises HttpError, with the field's name, for prompts that it cannot take.

    What cannot fit is refused before it is tokenized or rendered: by the bytes that its tokens can stand for at most.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def check_chat(self, chat: Chat, limits: PromptLimits, param: str) -> None:
        """Refuses a chat that cannot fit, whatever the template adds: each message has a token of its own.

        Templates write what users, systems and tools say, but for blanks around; of assistants they may leave out.
        """
        if (count := len(chat.messages)) > limits.prompt_tokens:
            raise too_long(f"The prompt has {count} messages, each of at least one token; {limits.sentence}.", param)
        contents = [message.get("content") for message in chat.messages if message["role"] != "assistant"]
        texts = [content.strip() for content in contents if isinstance(content, str)]
        self._check_size(sum(map(_size_bytes, texts)), limits, param)

    def prompts(
        self,
        inputs: Sequence[Given],
        limits: PromptLimits,
        *,
        param: str,
        special_tokens: bool = True,
        special_names: bool = False,
    ) -> list[Prompt]:
        """Prompts that fit into the context, each with the text as the client wrote it.

        `special_tokens`: the tokenizer adds its own to texts. `special_names`: special tokens are part of the texts
        that token ids stand for.
        """
        prompts, total = [], 0
        for given in inputs:
            prompts.append(self._prompt(given, limits, param, special_tokens, special_names))
            total += len(prompts[-1].tokens)
            if total > max(MAX_REQUEST_TOKENS, limits.context_tokens):
                sentence = f"All prompts together have more than {MAX_REQUEST_TOKENS} tokens: send fewer at once."
                raise too_long(sentence, param)
        return prompts

    def words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The token ids of each word, as it is written at the beginning of a text and after a space."""
        variants = (variant for word in words for variant in (word, f" {word}"))
        tokens = (self._tokenizer.encode_now(variant, special_tokens=False) for variant in variants)
        return tuple(dict.fromkeys(spelling for spelling in tokens if spelling))

    def _prompt(
        self, given: Given, limits: PromptLimits, param: str, special_tokens: bool, special_names: bool
    ) -> Prompt:
        if isinstance(given, str):
            self._check_size(_size_bytes(given), limits, param)
            prompt = Prompt(given, self._tokenizer.encode_now(given, special_tokens=special_tokens))
            self._check(prompt.tokens, limits, param)
            return prompt
        self._check(given, limits, param)
        return Prompt(self._tokenizer.decode(list(given), skip_special_tokens=not special_names), tuple(given))

    def _check_size(self, size_bytes: int, limits: PromptLimits, param: str) -> None:
        most = self._tokenizer.max_bytes(limits.prompt_tokens)
        if most is not None and size_bytes > most:
            raise too_long(
                f"The prompt has {size_bytes} bytes, and fits with {most} at most; {limits.sentence}.", param
            )

    def _check(self, tokens: Sequence[int], limits: PromptLimits, param: str) -> None:
        if not tokens and not limits.may_be_empty:
            raise invalid("The prompt is empty.", param)
        if len(tokens) > limits.prompt_tokens:
            raise too_long(f"The prompt has {len(tokens)} tokens; {limits.sentence}.", param)
        check_tokens(tokens, param, limits.vocabulary)


def check_tokens(tokens: Sequence[int], param: str, vocabulary: int) -> None:
    """Raises HttpError for ids outside the vocabulary: the model has no embedding for them."""
    if (highest := max(tokens, default=0)) >= vocabulary:
        raise invalid(f"Token ids must be below {vocabulary}; {highest} is not.", param)


def wrong_model(name: str, served: str) -> HttpError:
    message = f"The model {name!r} does not exist here; this server has {served!r}."
    return HttpError(404, message, param="model", code="model_not_found")


def _size_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
