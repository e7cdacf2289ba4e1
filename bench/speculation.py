"""What drafts by prompt lookup, and by a draft model, gain and cost: `python -m bench.speculation`, on a CPU.

One shape with weights by which the model continues a text of its own that never repeats, one token after the other; all
else is as in any model of this shape. What drafts are worth then depends on the prompt alone:

- copying: the prompt has the text with one token of ten replaced, as when a document is quoted or code is edited;
- fresh: the prompt has nothing of it, and nothing is found;
- misleading: the prompt has each two tokens of the text, and a wrong one after them: all drafts are wrong.

With `--draft` a draft model of two narrow layers drafts. The prompt is fresh: a look-up would find nothing.

- agreeing: it continues the text as the model does, but for one token of `DISAGREES_EVERY`;
- disagreeing: it continues it with other tokens, so that all drafts are wrong.

An engine with drafts and one without answer the same requests in turns over the same weights and the same cache, and
must return the same tokens. The ratio of a round is between neighbours in time. On a machine that does other work as
well, the ratio of CPU seconds beside it says more. Writes build/reports/speculation.json.
"""

import argparse
import os
import random
import statistics
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from bench.engine.shapes import SHAPES, Shape
from bench.gpu.roofline import config_of
from bench.page import publish, table
from bench.random_weights import RandomWeights
from slipway_process import machine
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.execution.draft_model import DraftModel
from slipway_server.engine.execution.runner import DecoderRunner
from slipway_server.engine.request import Request, SamplingParams
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.draft_cache import DraftCache
from slipway_server.engine.scheduling.drafting import DraftLimits, LookupDrafting
from slipway_server.engine.scheduling.model_drafting import ModelDrafting
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.kernels.api import BLOCK_TOKENS
from slipway_server.kernels.native import NativeKernels
from slipway_server.models.decoder import Decoder
from slipway_server.models.families import DecoderShape, shape_of
from slipway_server.settings import ServerSettings
from testkit.report import Bar, Json, report

STRIDE = 7919  # from a token of the text to the next one
PROMPT, NEW, CONTEXT = 192, 160, 384  # tokens
REPLACED_EVERY = 10
LOADS, DRAFT_LOADS = ("copying", "fresh", "misleading"), ("agreeing", "disagreeing")
BARS = {"copying": 1.6, "fresh": 0.97, "misleading": 0.97, "agreeing": 1.0, "disagreeing": 0.97}
DISAGREES_EVERY = 8


class TextWeights(RandomWeights):
    """Random weights of a model that continues its text: the head takes the embedding of the token before."""

    def __init__(self, shape: DecoderShape, *, wrong_every: int = 0) -> None:
        """`wrong_every`: so many tokens have another one after them; 0: none."""
        super().__init__(shape)
        self._wrong_every = wrong_every
        self._embedding = torch.empty(shape.vocabulary, shape.hidden, dtype=torch.bfloat16).uniform_(-0.03, 0.03)

    def take(self, name: str) -> torch.Tensor:
        if name.endswith("embed_tokens.weight"):
            return self._embedding
        if name == "lm_head.weight":
            head = torch.roll(self._embedding, STRIDE, 0)
            if self._wrong_every:
                # A token's row gets the embedding of a neighbour: after it, the row of another token is the likeliest.
                head[:: self._wrong_every] = torch.roll(head, 1, 0)[:: self._wrong_every].clone()
            return head
        weight = super().take(name)
        # What layers add is small beside the embedding, and as much work as ever.
        return weight * 1e-3 if name.endswith(("o_proj.weight", "down_proj.weight")) else weight


def text_of(shape: Shape, number: int) -> list[int]:
    """The text of a request: the last token of its prompt, and those that the model continues it with."""
    first = (number * 1009 + 17) % shape.vocabulary
    return [(first + at * STRIDE) % shape.vocabulary for at in range(NEW + PROMPT)]


def prompt_of(shape: Shape, load: str, number: int) -> tuple[int, ...]:
    first, *text = text_of(shape, number)
    chance = random.Random(number)

    def other() -> int:
        return chance.randrange(shape.vocabulary)

    if load in DRAFT_LOADS:
        load = "fresh"
    if load == "copying":
        body = [other() if at % REPLACED_EVERY == 5 else token for at, token in enumerate(text[: PROMPT - 1])]
    elif load == "fresh":
        body = [other() for _ in range(PROMPT - 1)]
    else:
        known = [first, *text]
        body = [token for at in range(PROMPT // 3) for token in (known[at], known[at + 1], other())][: PROMPT - 1]
    return (*body, first)


def runner_of(shape: Shape, slots: int, threads: int, *, int8: bool) -> DecoderRunner:
    layers = shape_of(config_of(shape) | {"tie_word_embeddings": False}, CONTEXT)
    weights: Any = TextWeights(layers)
    decoder = Decoder(layers, weights, NativeKernels(threads, int8=int8), CONTEXT)
    return DecoderRunner(decoder, slots=slots, context_tokens=CONTEXT, blocks=slots * CONTEXT // BLOCK_TOKENS)


def draft_shape(shape: Shape) -> Shape:
    """Of two layers a quarter as wide."""
    heads, kv_heads = max(1, shape.heads // 4), max(1, shape.kv_heads // 4)
    return replace(shape, layers=2, hidden=shape.hidden // 4, heads=heads, kv_heads=kv_heads, inner=shape.inner // 4)


def draft_decoder(shape: Shape, load: str, threads: int, *, int8: bool) -> Decoder:
    layers = shape_of(config_of(draft_shape(shape)) | {"tie_word_embeddings": False}, CONTEXT)
    weights: Any = TextWeights(layers, wrong_every=DISAGREES_EVERY if load == "agreeing" else 1)
    return Decoder(layers, weights, NativeKernels(threads, int8=int8), CONTEXT)


def engine_with(runner: DecoderRunner, slots: int, draft: Decoder) -> EngineCore:
    """An engine for which a draft model drafts."""
    engine = engine_of(runner, slots, drafts=False)
    scheduler = engine.scheduler
    cache, blocks = DraftCache(scheduler.block_manager), scheduler.block_manager.num_blocks
    passes = DecoderRunner(draft, slots=slots, context_tokens=CONTEXT, blocks=blocks)
    scheduler.drafting = ModelDrafting(ServerSettings.model_fields["num_speculative_tokens"].default, cache, CONTEXT)
    return EngineCore(scheduler, runner, drafter=DraftModel(passes, cache, vocab_size=draft.vocab_size))


def engine_of(runner: DecoderRunner, slots: int, *, drafts: bool) -> EngineCore:
    """Without a prefix cache: the other engine writes to the same blocks."""
    limits = SchedulerConfig(slots, 512, slots * CONTEXT, BLOCK_TOKENS, prefix_cache=False)
    fields = ServerSettings.model_fields
    names = ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
    drafting = LookupDrafting(DraftLimits(*(fields[name].default for name in names))) if drafts else None
    return EngineCore(Scheduler(limits, hash_key=bytes(32), drafting=drafting), runner)


@dataclass(slots=True)
class Answered:
    """What came after all responses had their first token: prompts are left out."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    steps: int = 0
    tokens: dict[str, list[int]] = field(default_factory=dict)


def answer(engine: EngineCore, shape: Shape, load: str, numbers: range) -> Answered:
    answered = Answered(tokens={str(number): [] for number in numbers})
    for number in numbers:
        params = SamplingParams(NEW, temperature=0.0)
        engine.submit(Request(str(number), prompt_of(shape, load, number), params))
    began_s = began_cpu_s = 0.0
    while engine.scheduler.busy:
        if not began_s and all(answered.tokens.values()):
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
        answered.steps += bool(began_s)
        for event in engine.step().events:
            assert event.error is None and event.token is not None, event
            answered.tokens[event.id].append(event.token)
    answered.seconds = time.perf_counter() - began_s
    answered.cpu_seconds = time.process_time() - began_cpu_s
    return answered


def measure(
    runner: DecoderRunner, shape: Shape, load: str, count: int, rounds: int, draft: Decoder | None = None
) -> Json:
    """`count` responses at a time. The first round is not counted: the engine learns in it what drafts cost."""
    plain = engine_of(runner, count, drafts=False)
    drafting = engine_with(runner, count, draft) if draft else engine_of(runner, count, drafts=True)
    pairs: list[tuple[Answered, Answered]] = []
    for number in range(rounds + 1):
        numbers = range(number * count, (number + 1) * count)
        turns = (plain, drafting) if number % 2 else (drafting, plain)
        found = {engine is drafting: answer(engine, shape, load, numbers) for engine in turns}
        if found[True].tokens != found[False].tokens:
            raise AssertionError(f"{load}: the tokens with drafts are not those without")
        pairs.append((found[False], found[True]))
    counted = pairs[1:]
    ratios = [without.seconds / drafted.seconds for without, drafted in counted]
    tokens = count * (NEW - 1)
    counts = drafting.scheduler.drafting
    assert counts is not None, "the engine drafts"
    return {
        "load": load,
        "responses": count,
        "tokens_per_s": round(tokens / statistics.median(without.seconds for without, _ in counted), 1),
        "tokens_per_s_with_drafts": round(tokens / statistics.median(drafted.seconds for _, drafted in counted), 1),
        "ratio": round(statistics.median(ratios), 3),
        "cpu_ratio": round(statistics.median(one.cpu_seconds / other.cpu_seconds for one, other in counted), 3),
        "steps_ratio": round(sum(one.steps for one, _ in counted) / sum(other.steps for _, other in counted), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "drafted_tokens": counts.draft_tokens,
        "accepted_tokens": counts.accepted_tokens,
    }


def bars_of(rows: list[Json]) -> list[Bar]:
    """One for each load and number of responses; for many responses copying must not lose."""
    made = []
    for row in rows:
        least = BARS["fresh"] if row["responses"] > 8 else BARS[row["load"]]
        name = f"{row['load']}, {row['responses']} at a time: tokens per second with drafts by without"
        made.append(Bar(name, row["ratio"], f">= {least}", row["ratio"] >= least))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen06")
    parser.add_argument("--draft", action="store_true", help="a draft model drafts; without it: prompt lookup")
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--responses", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=machine.cores())
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    torch.set_num_threads(options.threads)
    before = os.getloadavg()
    runner = runner_of(shape, max(options.responses), options.threads, int8=options.int8)
    rows = []
    for count in options.responses:
        for load in DRAFT_LOADS if options.draft else LOADS:
            draft = None
            if options.draft:
                draft = draft_decoder(shape, load, options.threads, int8=options.int8)
            rows.append(measure(runner, shape, load, count, options.rounds, draft))
            print(rows[-1], flush=True)
    made = bars_of(rows)
    about = {
        "shape": shape.name,
        "drafts": "draft model" if options.draft else "prompt lookup",
        "quantization": "int8" if options.int8 else "none",
        "threads": options.threads,
        "load_average": {"before": before, "after": os.getloadavg()},
    }
    names = ("load", "responses", "tokens_per_s", "tokens_per_s_with_drafts", "ratio", "cpu_ratio", "steps_ratio")
    header = [name.replace("_", " ") for name in names]
    lines = [[str(row[name]) for name in names] for row in rows]
    return publish(
        report("speculation-draft" if options.draft else "speculation", rows, made, **about),
        made,
        table(header, lines),
        None,
    )


if __name__ == "__main__":
    raise SystemExit(main())
