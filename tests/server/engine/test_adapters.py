"""Adapters in the engine: rows of many in one batch, caches apart, loading on demand, and unloading."""

import select
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from slipway_process.model_folder import checkpoint
from slipway_server.engine.adapters.catalog import AdapterCatalog, CatalogEntry
from slipway_server.engine.adapters.loader import AdapterLoader
from slipway_server.engine.adapters.residency import Residency
from slipway_server.engine.adapters.store import CHANGED, MAX_REGISTERED, NOT_IN_TIME, AdapterStore
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.execution.runner import DecoderRunner
from slipway_server.engine.messages import AdapterFailed, AdapterLoaded, AdaptersChanged, AdapterUnloaded
from slipway_server.engine.request import FinishReason, Request, RequestOutput, SamplingParams
from slipway_server.engine.scheduling.block_hash import BlockHasher
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.http.adapters import AdapterCommands
from slipway_server.kernels.low_rank import AdapterRoom, LowRank, UpdateRefused
from slipway_server.metrics import ServerMetrics
from slipway_server.models.adapters.folder import AdapterLimits
from slipway_server.models.adapters.targets import parts_of, targets_of
from slipway_server.models.generator import load_generator
from testkit.until import until
from tests.conftest import MODELS
from tests.server.adapter_folders import tensors_of, write
from tests.server.kernels.batches import why_not_native

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SLOTS, RANK, TOKENS = 8, 4, 8
PROMPT = tuple(range(100, 170))


@cache
def decoder(dtype: str = "float32", quantization: str = "none") -> Any:
    torch.set_num_threads(1)
    folder = MODELS / "tiny-v1"
    model = load_generator(
        folder, checkpoint.read_config(folder), dtype=dtype, quantization=quantization, device="cpu",
        context_tokens=256, threads=2, adapters=AdapterRoom(SLOTS, RANK),
    )  # fmt: skip
    model.kernels.reserve(257)
    return model


class Engine:
    """An engine with adapters; `digests` of those in folders a0, a1 and so on of `root`."""

    def __init__(
        self, root: Path, model: Any, *, most: int = SLOTS, size_bytes: int = 1 << 30, rank: int = RANK, **limits: Any
    ) -> None:
        for layer in model.operations:
            for operation in layer.values():
                for slot in range(SLOTS):
                    operation.adapt(slot, None)
        self.root, self.targets = root, targets_of(model.shape)
        loader = AdapterLoader(
            AdapterLimits(rank, size_bytes, root, frozenset()), self.targets, parts_of(model.shape), model.operations
        )
        self.store = AdapterStore(loader, model.operations, Residency(most, size_bytes))
        model.kernels.reserve = lambda blocks: None  # it has as many as all of these tests need
        config = SchedulerConfig(**{"slots": 16, "step_tokens": 512, "kv_tokens": 8192} | limits)
        runner = DecoderRunner(model, slots=16, context_tokens=256, blocks=256, slot_of=self.store.slot_of)
        self.core = EngineCore(Scheduler(config, hash_key=bytes(32)), runner, adapters=self.store)
        self.reports: list[Any] = []

    def write(self, *numbers: int, **more: Any) -> None:
        for number in numbers:
            write(self.root / f"a{number}", tensors_of(self.targets, RANK, seed=number, **more))

    def load(self, *numbers: int) -> list[str]:
        """Writes adapters and loads them; their digests."""
        self.write(*numbers)
        return self.load_written(*(f"a{number}" for number in numbers))

    def load_written(self, *paths: str) -> list[str]:
        digests = []
        for path in paths:
            self.store.load(path)
            report = self.await_report(AdapterLoaded, AdapterFailed)
            assert isinstance(report, AdapterLoaded), report
            digests.append(report.digest)
        return digests

    def await_report(self, *kinds: type) -> Any:
        def matching() -> Any:
            self.core.look()
            self.reports += self.store.take_reports()
            return next((report for report in self.reports if isinstance(report, kinds)), None)

        report = until(matching, "a report", 20)
        self.reports.remove(report)
        return report

    def run(self, *requests: Request) -> dict[str, list[RequestOutput]]:
        for request in requests:
            self.core.submit(request)
        events: dict[str, list[RequestOutput]] = {request.id: [] for request in requests}

        end_s = time.monotonic() + 60
        while not all(any(event.finish for event in each) for each in events.values()):
            assert time.monotonic() < end_s, "the answers take too long"
            if self.core.look():
                for event in self.core.step().events:
                    events[event.id].append(event)
        self.core.scheduler.check()
        return events


def request(name: str, adapter: str = "", **more: Any) -> Request:
    params = SamplingParams(TOKENS, temperature=0.0, **more)
    return Request(name, PROMPT, params, adapter=adapter)


def tokens(events: list[RequestOutput]) -> list[int]:
    assert not [event.error for event in events if event.error]
    return [event.token for event in events if event.token is not None]


KINDS = [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8")]


@pytest.mark.parametrize(("dtype", "quantization"), KINDS, ids=["torch", "bfloat16", "int8"])
def test_a_batch_with_eight_adapters_gives_each_answer_that_it_has_alone(
    dtype: str, quantization: str, tmp_path: Path
) -> None:
    if dtype == "bfloat16" and (reason := why_not_native()):
        pytest.skip(reason)
    engine = Engine(tmp_path, decoder(dtype, quantization), prefix_cache=False)
    digests = ["", *engine.load(*range(SLOTS))]
    requests = [request(f"r{number}", digest) for number, digest in enumerate(digests)]
    together = {name: tokens(events) for name, events in engine.run(*requests).items()}
    alone = {each.id: tokens(engine.run(each)[each.id]) for each in requests}
    assert together == alone and len({*map(tuple, alone.values())}) == len(requests)
    assert alone["r0"] == tokens(Engine(tmp_path, decoder(dtype, quantization)).run(request("r0"))["r0"])


def test_beginnings_are_never_shared_between_adapters(tmp_path: Path) -> None:
    engine = Engine(tmp_path, decoder())
    requests = [request(f"r{number}", digest) for number, digest in enumerate(["", *engine.load(0, 1)])]
    first = {each.id: tokens(engine.run(each)[each.id]) for each in requests}
    assert engine.core.scheduler.prefix_hits == 0
    assert {each.id: tokens(engine.run(each)[each.id]) for each in requests} == first
    assert engine.core.scheduler.prefix_hits == len(requests) * 64  # each found its own
    hasher = BlockHasher(32, key=bytes(32))
    roots = {hasher.root_hash(tenant, adapter) for tenant in ("", "a") for adapter in ("", "a", "b")}
    assert len(roots) == 6


def test_preempted_and_resumed_answers_keep_their_adapter(tmp_path: Path) -> None:
    engine = Engine(tmp_path, decoder())
    digests = engine.load(0, 1, 2)
    requests = [request(f"r{number}", digest) for number, digest in enumerate(digests)]
    wanted = {each.id: tokens(engine.run(each)[each.id]) for each in requests}
    small = Engine(tmp_path, decoder(), slots=2, step_tokens=24, kv_tokens=160)
    assert {name: tokens(events) for name, events in small_run(small, requests).items()} == wanted
    resumed = Request("r", PROMPT, requests[1].sampling, resumed=tuple(wanted["r1"][:3]), adapter=digests[1])
    assert tokens(engine.run(resumed)["r"]) == wanted["r1"][3:]


def small_run(engine: Engine, requests: list[Request]) -> dict[str, list[RequestOutput]]:
    engine.load(0, 1, 2)
    return engine.run(*requests)


def test_log_probabilities_are_those_of_the_adapter(tmp_path: Path) -> None:
    engine = Engine(tmp_path, decoder())
    (digest,) = engine.load(0)
    own = engine.run(request("a", digest, logprobs=1, prompt_logprobs=0))["a"]
    base = engine.run(request("b", logprobs=1, prompt_logprobs=0))["b"]
    both = [[item.values[0] for event in events for item in event.prompt_logprobs] for events in (own, base)]
    assert len(both[0]) == len(PROMPT) - 1 and both[0] != both[1]


def test_adapters_give_way_and_come_back(tmp_path: Path) -> None:
    engine = Engine(tmp_path, decoder(), most=2)
    digests = engine.load(0, 1, 2)
    loaded = [report.sizes for report in engine.reports if isinstance(report, AdaptersChanged)]
    assert list(loaded[-1]) == digests[1:]  # the first one gave way
    answers = engine.run(*(request(f"r{number}", digest) for number, digest in enumerate(digests)))
    alone = [tokens(engine.run(request("r", digest))["r"]) for digest in digests]
    assert [tokens(answers[f"r{number}"]) for number in range(3)] == alone
    assert len({*map(tuple, alone)}) == 3


def test_the_bytes_of_all_adapters_are_bounded(tmp_path: Path) -> None:
    engine = Engine(tmp_path, decoder())
    engine.load(0)
    size = engine.await_report(AdaptersChanged).sizes.popitem()[1]
    engine = Engine(tmp_path, decoder(), size_bytes=size * 5 // 2)
    digests = engine.load(0, 1, 2)
    sizes = [report.sizes for report in engine.reports if isinstance(report, AdaptersChanged)]
    assert all(sum(each.values()) <= size * 5 // 2 for each in sizes) and list(sizes[-1]) == digests[1:]


def test_changed_files_are_not_what_a_request_gets(tmp_path: Path) -> None:
    engine = Engine(tmp_path, decoder(), most=1)
    digests = engine.load(0, 1)
    write(tmp_path / "a0", tensors_of(engine.targets, RANK, seed=99))
    (event,) = engine.run(request("r", digests[0]))["r"]
    assert event.finish is FinishReason.ERROR and event.error == CHANGED
    assert tokens(engine.run(request("r", digests[1]))["r"])


def test_unknown_adapters_and_commands_that_fail_are_reported(tmp_path: Path) -> None:
    engine = Engine(tmp_path, decoder())
    (event,) = engine.run(request("r", "0" * 64))["r"]
    assert event.finish is FinishReason.INVALID
    engine.store.load("nothing")
    failed = engine.await_report(AdapterFailed)
    assert failed.path == "nothing" and failed.field == "lora_path"
    for number in range(MAX_REGISTERED):
        engine.store.load(f"a{number}", f"{number:064x}")
    engine.store.load("a0")
    assert "limit" in engine.await_report(AdapterFailed).reason


def test_an_adapter_is_unloaded_when_its_last_request_has_ended(tmp_path: Path) -> None:
    engine = Engine(tmp_path, decoder())
    (digest,) = engine.load(0)
    engine.core.submit(request("r", digest))
    assert engine.core.look()
    engine.store.unload(digest)
    engine.core.look()
    assert not [report for report in engine.store.take_reports() if isinstance(report, AdapterUnloaded)]
    engine.core.cancel("r")
    assert engine.await_report(AdapterUnloaded).digest == digest


def test_an_adapter_is_unloaded_while_another_one_of_its_files_is_read(tmp_path: Path) -> None:
    engine = Engine(tmp_path, decoder())
    (digest,) = engine.load(0)
    engine.store.load("a0")
    engine.core.look()
    assert select.select([engine.store], [], [], 20)[0]
    engine.store.unload(digest)
    engine.core.look()
    assert engine.await_report(AdapterUnloaded).digest == digest, "its command ends"
    assert tokens(engine.run(request("r", digest))["r"]), "the other one stays"


async def test_the_engine_knows_an_adapter_though_another_one_of_its_files_left_meanwhile(tmp_path: Path) -> None:
    engine = Engine(tmp_path, decoder())
    (digest,) = engine.load(0)

    class Client:
        adapters = AdapterCatalog("base")

        async def load_adapter(self, path: str) -> AdapterLoaded:
            engine.store.load(path)
            loaded: AdapterLoaded = engine.await_report(AdapterLoaded)
            engine.store.unload(digest)  # of the other name, which the catalog knew alone
            engine.await_report(AdapterUnloaded)
            return loaded

        def keep_adapter(self, entry: CatalogEntry) -> None:
            engine.store.load(entry.path, entry.digest)

    client: Any = Client()
    await AdapterCommands(client, ServerMetrics("base")).load(b'{"lora_name": "b", "lora_path": "a0"}')
    assert tokens(engine.run(request("r", digest))["r"])


def test_an_adapter_whose_norms_are_0_is_refused(tmp_path: Path) -> None:
    engine = Engine(tmp_path, decoder(*KINDS[1]))
    name = next(name for name in engine.targets if name.endswith("down_proj"))
    target, layer = engine.targets[name], engine.targets[name].layer
    operation = decoder(*KINDS[1]).operations[layer]["down"]
    a, b = -operation._weight_rows(0, 1), torch.eye(target.outputs, 1)  # nothing is left of the first row
    with pytest.raises(UpdateRefused):
        operation.prepare((LowRank(a, b, 1.0, torch.ones(target.outputs)),))


def test_a_request_whose_adapter_finds_no_room_in_its_time_ends(tmp_path: Path) -> None:
    engine = Engine(tmp_path, decoder(), most=1)
    first, second = engine.load(0, 1)
    engine.core.submit(request("long", second))
    assert engine.core.look()  # it is pinned, and makes no step
    late = Request("r", PROMPT, SamplingParams(1), timeout_s=0.2, adapter=first)
    engine.core.submit(late)
    time.sleep(0.3)
    assert engine.core.look()
    (event,) = [event for event in engine.core.step().events if event.id == "r"]
    assert event.finish is FinishReason.DEADLINE and event.error == NOT_IN_TIME
