"""Captured decodes, against a device that is none: what is replayed is what was captured, over the same memory.

The kernels run in Triton's interpreter. CUDA itself, its streams and its memory are not tested here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from bench.random_weights import RandomWeights
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.execution.runner import DecoderRunner
from slipway_server.engine.request import Request, SamplingParams
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.kernels import cuda
from slipway_server.kernels.api import BLOCK_TOKENS, Batch
from slipway_server.kernels.in_torch import TorchKernels
from slipway_server.kernels.in_triton import TritonKernels
from slipway_server.models.decoder import Decoder
from slipway_server.models.families import shape_of
from slipway_server.models.generator import self_test

NO_MIN_P = pytest.mark.filterwarnings("ignore:divide by zero encountered in log")  # the interpreter's, where it is 0
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), NO_MIN_P]

CONTEXT, SLOTS, BLOCKS = 96, 5, 20
CONFIG = {
    "model_type": "qwen3", "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "intermediate_size": 48, "vocab_size": 64, "num_hidden_layers": 1, "tie_word_embeddings": True,
}  # fmt: skip


class Large(RandomWeights):
    """So large that answers differ from prompt to prompt."""

    def take(self, name: str) -> torch.Tensor:
        weight = super().take(name)
        return weight if weight.dim() == 1 else weight * 20


def decoder(kernels: Any) -> Decoder:
    shape = shape_of(CONFIG, CONTEXT)
    weights: Any = Large(shape, torch.float32, torch.device("cpu"))
    return Decoder(shape, weights, kernels, CONTEXT)


class Tape:
    """In place of torch.cuda: a capture keeps the batches that a model was given; a replay computes them again."""

    def __init__(self, model: Decoder, *, refuses: Exception | None = None) -> None:
        self.kernels = model.kernels
        self.captured: list[int] = []
        self.replays = 0
        self._model, self._refuses = model, refuses
        self._capturing: Tape.Graph | None = None

    def logits(self, batch: Batch) -> torch.Tensor:
        if self._capturing is not None:
            if self._refuses:
                raise self._refuses
            self.captured.append(len(batch.ids))
            self._capturing.batch = batch
            return torch.zeros(len(batch.rows), CONFIG["vocab_size"])  # nothing is computed during a capture
        return self._model.logits(batch)

    class Graph:
        tape: "Tape"
        batch: Batch
        target: torch.Tensor

        def replay(self) -> None:
            self.tape.replays += 1
            self.target.copy_(self.tape._model.logits(self.batch))

    @contextmanager
    def graph(self, graph: "Tape.Graph", **_: Any) -> Iterator[None]:
        self._capturing, graph.tape = graph, self
        try:
            yield
        finally:
            self._capturing = None


class Event:
    def synchronize(self) -> None: ...

    def record(self) -> None: ...


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Tape.Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(cuda, "pinned", lambda ints: torch.empty(ints, dtype=torch.int32))


def engine(model: Any, steps: Any = None, *, async_scheduling: bool = False) -> EngineCore:
    runner = DecoderRunner(model, slots=SLOTS, context_tokens=CONTEXT, blocks=BLOCKS)
    if steps:
        model.kernels.reserve(BLOCKS + 1)
        runner._logits = steps.logits
    limits = SchedulerConfig(SLOTS, 24, BLOCKS * BLOCK_TOKENS, BLOCK_TOKENS)
    launches = runner if async_scheduling else None
    return EngineCore(Scheduler(limits, hash_key=bytes(32)), runner, launches=launches)


def answers(engine: EngineCore) -> dict[str, list[int]]:
    """Of requests that join one by one, go in by parts, and end at different times."""
    found: dict[str, list[int]] = {}
    random = torch.Generator().manual_seed(2)
    for number, size in enumerate((3, 33, 1, 9, 2)):
        prompt = tuple(torch.randint(0, 64, (size,), generator=random).tolist())
        sampling = SamplingParams(8 + 3 * number, temperature=float(number % 2), seed=number)
        engine.submit(Request(str(number), prompt, sampling))
    while engine.scheduler.busy:
        for event in engine.step().events:
            assert event.error is None
            if event.token is not None:
                found.setdefault(event.id, []).append(event.token)
    engine.scheduler.check()
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    return answers(engine(decoder(TorchKernels(torch.float32, "cpu"))))


def captured(
    monkeypatch: pytest.MonkeyPatch,
    refuses: Exception | None = None,
    *,
    captures: bool = True,
    async_scheduling: bool = False,
) -> tuple[Tape, dict[str, list[int]]]:
    tape = Tape(decoder(TritonKernels(torch.float32, "cpu")), refuses=refuses)
    monkeypatch.setattr(torch.cuda, "graph", tape.graph)
    steps = cuda.CudaSteps(tape, slots=SLOTS, table_width=CONTEXT // BLOCK_TOKENS, scratch=BLOCKS, captures=captures)
    keep = cuda._Decodes._capture

    def capture(self: Any, logits: torch.Tensor) -> None:
        monkeypatch.setattr(Tape.Graph, "target", logits, raising=False)
        keep(self, logits)
        if self._replay:
            self._replay[0].target = logits

    monkeypatch.setattr(cuda._Decodes, "_capture", capture)
    return tape, answers(engine(tape, steps, async_scheduling=async_scheduling))


@pytest.mark.usefixtures("no_device")
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_replayed_steps_give_the_same_tokens_as_eager_steps(
    monkeypatch: pytest.MonkeyPatch, expected: dict[str, list[int]], *, async_scheduling: bool
) -> None:
    tape, found = captured(monkeypatch, async_scheduling=async_scheduling)
    assert found == expected
    assert len(set(map(tuple, found.values()))) == 5, "the answers must differ"
    assert tape.replays > 5 and len(tape.captured) == len(set(tape.captured))
    assert set(tape.captured) == {1, 5}


@pytest.mark.usefixtures("no_device")
@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("no memory"), RuntimeError("CUDA error: operation not permitted when stream is capturing")],
)
def test_steps_that_cannot_be_captured_run_eagerly_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, expected: dict[str, list[int]], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    tape, found = captured(monkeypatch, error)
    assert found == expected and tape.replays == 0
    lines = [record.__dict__ for record in caplog.records if "cannot be captured" in record.getMessage()]
    assert lines and {line["error"] for line in lines} == {repr(error)}
    assert len({line["size"] for line in lines}) == len(lines), "once for each size"


@pytest.mark.usefixtures("no_device")
def test_nothing_is_captured_where_steps_must_be_eager(
    monkeypatch: pytest.MonkeyPatch, expected: dict[str, list[int]]
) -> None:
    tape, found = captured(monkeypatch, captures=False)
    assert found == expected and tape.replays == 0 and tape.captured == []


def test_the_self_test_compares_prefill_with_decode() -> None:
    model = decoder(TritonKernels(torch.float32, "cpu"))
    model.kernels.reserve(4)
    self_test(model, 64)
