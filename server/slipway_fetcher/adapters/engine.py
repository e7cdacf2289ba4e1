"""The engine's API for adapters: which ones it has, and how it loads and unloads them. Its functions block.

slipway-server and vLLM: https://docs.vllm.ai/en/latest/features/lora/#dynamically-serving-lora-adapters
SGLang: https://docs.sglang.io/docs/advanced_features/lora (dynamic LoRA loading)
"""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

Engine = Literal["slipway", "vllm", "sglang"]
LIST_S, COMMAND_S = 10.0, 600.0
MAX_ANSWER_BYTES, MAX_MODELS, MAX_SENTENCE = 4 << 20, 4096, 400
MODELS = "/v1/models"


class EngineBusyError(Exception):
    """The engine did not do it now, and may later; the text says why."""


class EngineDownError(EngineBusyError):
    """Nothing listens: the engine ended, or has not begun."""


class EngineRefusedError(Exception):
    """The engine will not do it, whenever it is requested; the text is its sentence."""


class EngineAdapter(Struct, frozen=True):
    """An adapter as the engine lists it. `root`: the path from which it was loaded.

    `loaded`: in the kernels' memory now; an engine may read one again for its next request.
    """

    id: Annotated[str, Meta(max_length=1024)] = ""
    parent: str | None = None
    root: str | None = None
    loaded: bool = True


class _Models(Struct, frozen=True):
    data: Annotated[tuple[EngineAdapter, ...], Meta(max_length=MAX_MODELS)] = ()


class _Error(Struct, frozen=True):
    message: str = ""


class _Refusal(Struct, frozen=True):
    """OpenAI's form, vLLM's older one, and SGLang's."""

    error: _Error | None = None
    message: str = ""
    error_message: str = ""


_MODELS = msgspec.json.Decoder(_Models)
_REFUSAL = msgspec.json.Decoder(_Refusal)
_PERMANENT = frozenset({400, 404, 413, 422})
# vLLM's 500 for files that its workers refuse: another rank, other shapes, half of a file. It serves on.
_WORKERS_REFUSE = "Call to add_lora method failed"
_ELSEWHERE = "being loaded or unloaded"
_THERE = ("already been loaded", "already loaded", "already exists")


@dataclass(slots=True)
class EngineApi:
    """`url`: where the engine takes commands: of slipway-server its probe port."""

    url: str
    engine: Engine
    list_s: float = LIST_S
    command_s: float = COMMAND_S
    # SGLang's older versions list no adapters: what they loaded, until they end.
    _assumed: dict[str, EngineAdapter] = field(default_factory=dict)

    @property
    def caches_by_path(self) -> bool:
        """Whether other files at a path get the cached prompts of the former ones: vLLM knows both by name and path."""
        return self.engine == "vllm"

    @property
    def reads_later(self) -> bool:
        """Whether requests may read an adapter after `unload`: vLLM answers them still, and ends without its files."""
        return self.engine == "vllm"

    def adapters(self) -> Mapping[str, EngineAdapter]:
        """The adapters that the engine has, by name. Raises EngineBusyError."""
        try:
            status, body = self._call("GET", MODELS, None, self.list_s)
        except EngineDownError:
            self._assumed.clear()
            raise
        if status != 200:
            raise EngineBusyError(f"The engine answers {status} to GET {MODELS}.")
        try:
            listed = _MODELS.decode(body).data
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise EngineBusyError(f"The engine's list of models is wrong: {str(error)[:MAX_SENTENCE]}") from None
        return self._assumed | {adapter.id: adapter for adapter in listed if adapter.parent}

    def load(self, name: str, path: str) -> None:
        """Loads the adapter in a folder. Raises EngineBusyError, EngineRefusedError."""
        status, body = self._command("load_lora_adapter", {"lora_name": name, "lora_path": path})
        sentence = _sentence(body)
        if status != 200 and not any(words in sentence for words in _THERE):
            self._fail(status, sentence)
        if self.engine == "sglang":
            self._assumed[name] = EngineAdapter(name, "sglang", path)

    def unload(self, name: str) -> None:
        """Unloads an adapter; one that is not there is unloaded. Raises EngineBusyError, EngineRefusedError."""
        status, body = self._command("unload_lora_adapter", {"lora_name": name})
        gone = status == 404 or (self.engine == "sglang" and status == 400)
        if status != 200 and not gone:
            self._fail(status, _sentence(body))
        self._assumed.pop(name, None)

    def _command(self, command: str, body: Mapping[str, str]) -> tuple[int, bytes]:
        path = f"/{command}" if self.engine == "sglang" else f"/v1/{command}"
        return self._call("POST", path, json.dumps(body), self.command_s)

    def _fail(self, status: int, sentence: str) -> None:
        is_refused = self.engine == "vllm" and sentence.startswith(_WORKERS_REFUSE)
        if is_refused or (status in _PERMANENT and _ELSEWHERE not in sentence):
            raise EngineRefusedError(sentence or f"The engine answered {status}.")
        raise EngineBusyError(f"The engine answered {status}: {sentence}")

    def _call(self, method: str, path: str, body: str | None, timeout_s: float) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            return response.status, response.read(MAX_ANSWER_BYTES)
        except TimeoutError:
            raise EngineBusyError(f"The engine does not answer {method} {path} in {timeout_s:g} s.") from None
        except (OSError, http.client.HTTPException) as error:
            raise EngineDownError(f"The engine cannot be reached: {error or type(error).__name__}.") from None
        finally:
            connection.close()


def _sentence(body: bytes) -> str:
    """Why the engine refused, as it says it."""
    try:
        refusal = _REFUSAL.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return body[:MAX_SENTENCE].decode(errors="replace")
    text = (refusal.error.message if refusal.error else "") or refusal.message or refusal.error_message
    return text[:MAX_SENTENCE]
