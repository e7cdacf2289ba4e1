"""An engine in this process under one kind of load: so many sequences that decode without an end."""

import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from bench.engine.peers import cores
from slipway_process.model_folder import checkpoint
from slipway_server.engine.build import build_generator
from slipway_server.engine.messages import Start, encode
from slipway_server.engine.request import Grammar, Request, SamplingParams
from slipway_server.http.requests.structured import of_schema

PROMPT_TOKENS, OUTPUT_TOKENS, WARM_STEPS = 32, 400, 6
CONTEXT_TOKENS = 512
START_LIMIT_S = 120.0  # until all decode: the first grammar loads the tokenizer
PEOPLE = {
    "type": "array",
    "minItems": 200,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "role": {"enum": ["reader", "writer", "owner"]},
        },
        "required": ["name", "age", "role"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    params: dict[str, Any]
    grammar: bool = False

    def sampling(self, seed: int, stops: tuple[int, ...]) -> SamplingParams:
        grammar: Grammar | None = of_schema(PEOPLE, "response_format", "[ ]") if self.grammar else None
        ends = stops if grammar else ()
        return SamplingParams(OUTPUT_TOKENS, seed=seed, stop_token_ids=ends, grammar=grammar, **self.params)


GREEDY = Load("greedy", {"temperature": 0.0})
DEFAULT = Load("temperature 1", {"temperature": 1.0})
NUCLEUS = Load("temperature 0.8, top_p 0.95", {"temperature": 0.8, "top_p": 0.95})
TOP_K = Load("temperature 0.6, top_k 20, top_p 0.95", {"temperature": 0.6, "top_k": 20, "top_p": 0.95})
FOLLOWING = Load("JSON schema, temperature 1", {"temperature": 1.0}, grammar=True)


class Loaded:
    """One engine that always has `batch` sequences which decode."""

    def __init__(self, model: Path, load: Load, batch: int) -> None:
        self._load, self._batch = load, batch
        self._stops = checkpoint.read(model).stop_token_ids
        start = Start(
            model=str(model), task="generate", dtype="bfloat16", quantization="none", device="cpu",
            context_tokens=CONTEXT_TOKENS, slots=batch, step_tokens=0, step_s=0.0,
            kv_tokens=batch * CONTEXT_TOKENS, prefix_cache=False, stop_token_ids=self._stops,
        )  # fmt: skip
        torch.set_num_threads(cores())  # as the engine process does
        self._engine, self.ready = build_generator(start, cores())
        self._numbers = count()
        self._left = 0

    def __enter__(self) -> "Loaded":
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine.masks:
            self._engine.masks.stop()

    def renew(self) -> None:
        """New sequences, so that both engines of a comparison decode at the same lengths; until all of them decode."""
        scheduler, deadline_s = self._engine.scheduler, time.monotonic() + START_LIMIT_S
        for name in list(scheduler.running):
            self._engine.cancel(name)
        for number in range(self._batch):
            prompt = tuple(600 + (number * 31 + place) % 1000 for place in range(PROMPT_TOKENS))
            seed = next(self._numbers)
            self._engine.submit(Request(f"{seed}", prompt, self._load.sampling(seed, self._stops)))
        while len(scheduler.running) < self._batch or not all(one.decoding for one in scheduler.running.values()):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self._load.name}: the sequences do not start to decode")
            if self._engine.look():
                self._engine.step()
        for _ in range(WARM_STEPS):
            self._engine.step()

    def run(self, steps: int) -> tuple[int, float]:
        """Tokens, and the seconds that they took: scheduling, and encoding for the HTTP process, are part of them."""
        tokens, began_s = 0, time.perf_counter()
        for _ in range(steps):
            self._engine.look()
            step = self._engine.step()
            encode(step)
            tokens += sum(event.token is not None for event in step.events)
        return tokens, time.perf_counter() - began_s
