"""What the loader makes of an engine's responses; those of vLLM are the bytes of vLLM 0.32 on a CPU."""

import json

import pytest

from slipway_fetcher.adapters.engine import EngineApi, EngineBusyError, EngineRefusedError

_WORKER = (
    '{"error":{"message":"Call to add_lora method failed: Worker failed with error \'%s\', please check the stack '
    'trace above for the root cause","type":"InternalServerError","param":null,"code":500}}'
)
_MODELS = (
    b'{"object":"list","data":[{"id":"chat","object":"model","created":1796125369,"owned_by":"vllm","root":"/models/v1",'
    b'"parent":null,"max_model_len":512,"permission":[]},{"id":"support@r1","object":"model","created":1796125385,'
    b'"owned_by":"vllm","root":"/adapters/r1/of-0a","parent":"chat","max_model_len":null,"permission":[]}]}'
)


class Answering(EngineApi):
    """An engine of the type vllm that gives one response."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__("http://127.0.0.1:1", "vllm")
        self._answer = status, body

    def _call(self, method: str, path: str, body: str | None, timeout_s: float) -> tuple[int, bytes]:
        return self._answer


@pytest.mark.parametrize(
    "sentence",
    [
        "LoRA rank 16 is greater than max_lora_rank 8.",
        "vLLM does not yet support DoRA.",
        "The size of tensor a (128) must match the size of tensor b (192) at non-singleton dimension 1",
        "Missing required configuration fields: {'r'}",
        "Error while deserializing header: incomplete metadata, file not fully covered",
    ],
)
def test_files_that_vllms_workers_refuse_are_refused_though_it_answers_500(sentence: str) -> None:
    with pytest.raises(EngineRefusedError) as refused:
        Answering(500, (_WORKER % sentence).encode()).load("support@r1", "/adapters/r1")
    assert sentence in str(refused.value)


def test_files_that_vllm_does_not_find_are_refused() -> None:
    body = b'{"error":{"message":"Loading lora s@absent failed: No adapter found for <path>","type":"NotFoundError",'
    with pytest.raises(EngineRefusedError):
        Answering(404, body + b'"param":null,"code":404}}').load("s@absent", "/adapters/r1")


def test_a_vllm_whose_engine_ended_may_load_later() -> None:
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
    with pytest.raises(EngineBusyError):
        Answering(500, json.dumps({"error": error}).encode()).load("support@r1", "/adapters/r1")


def test_what_vllm_has_loaded_already_is_loaded_and_what_it_has_not_is_unloaded() -> None:
    there = (
        b'{"error":{"message":"The lora adapter \'s@one\' has already been loaded. If you want to load the adapter in '
        b'place, set \'load_inplace\' to True.","type":"InvalidUserInput","param":null,"code":400}}'
    )
    Answering(400, there).load("s@one", "/adapters/r1")
    gone = b'{"error":{"message":"The lora adapter \'s@one\' cannot be found.","type":"NotFoundError","param":null,'
    Answering(404, gone + b'"code":404}}').unload("s@one")
    Answering(200, b"Success: LoRA adapter 's@one' removed successfully.").unload("s@one")


def test_vllm_lists_adapters_by_the_path_that_it_was_given() -> None:
    [adapter] = Answering(200, _MODELS).adapters().values()
    assert (adapter.id, adapter.root, adapter.loaded) == ("support@r1", "/adapters/r1/of-0a", True)
