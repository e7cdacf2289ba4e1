"""Reads large bodies as a whole, and makes their prompts; only the process for these imports it."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from ...text.chat import Chat
from ...text.tokenizer import Tokenizer
from ..requests.prompts import PromptEncoder
from .inputs import KINDS, read_input
from .messages import BodyRead, PromptData, ReadBody

_BY_NAME = {kind.__name__: kind for kind in KINDS}


class LargeBodies:
    def __init__(self, model: str, folder: Path) -> None:
        """`folder`: of tokenizer.json."""
        self._model, self._encoder = model, PromptEncoder(Tokenizer(folder))

    def read(self, job: ReadBody, render: Callable[[Chat], str]) -> BodyRead:
        """Raises HttpError, and what `render` raises."""
        found = read_input(job.body, _BY_NAME[job.kind], self._model, job.names)
        texts = found.texts
        if found.chat:
            self._encoder.check_chat(found.chat, job.limits, found.param)
            texts = [render(found.chat)]
        prompts = self._encoder.prompts(
            texts,
            job.limits,
            param=found.param,
            special_tokens=found.special_tokens,
            special_names=found.special_names,
        )
        return BodyRead(msgspec.msgpack.encode(found.body), list(map(PromptData.of, prompts)))
