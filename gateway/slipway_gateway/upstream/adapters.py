"""Requests for adapters as engines get them: they know a revision of an adapter by a name of its own (pure)."""

import msgspec

from ..routing.adapters import SGLANG, model_of
from ..wire import members
from ..wire.inference import ModelPath

_MAX_LOOKED_BYTES = 64 << 10


class AdapterCall(msgspec.Struct, frozen=True):
    """What of a request names its adapter. `model`: the name that its body has now. `path`: where that has it, too."""

    model: str
    path: ModelPath | None = None
    in_body: bool = True

    def path_qs(self, path_qs: str, revision: str, engine: str) -> str:
        """The path for a revision at an engine of this type."""
        return path_qs if self.path is None else self.path.with_model(path_qs, model_of(self.model, revision, engine))

    def body(self, body: bytes, revision: str, engine: str) -> bytes:
        """The body for a revision at an engine of this type."""
        if not self.in_body:
            return body
        name = msgspec.json.encode(model_of(self.model, revision, engine))
        return members.with_member(body, b"model", name, msgspec.json.encode(self.model))

    def is_refused(self, status: int, start: bytes, revision: str, engine: str) -> bool:
        """Whether a response says that the engine has no such adapter. SGLang says that by 400."""
        if status != 404 and not (status == 400 and engine == SGLANG and b"LoRA adapter" in start):
            return False
        name = model_of(self.model, revision, engine).removeprefix("base:")
        return name.encode() in start[:_MAX_LOOKED_BYTES]
