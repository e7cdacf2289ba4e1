"""A scheduler's batch to tensors, through the decoder, to sampled tokens."""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

import numpy
import torch

from ..kernels.api import BLOCK_TOKENS, Batch, Kernels
from .packing import Ints, Packed
from .request import Request, Sampled, SamplingParams, Sequence, Work
from .sampler import Sampler, prompt_logprobs


class Model(Protocol):
    """A decoder: ours, or one of transformers'."""

    kernels: Kernels

    def logits(self, batch: Batch) -> torch.Tensor:
        """float32 [R, vocabulary] of the batch's wanted rows."""
        ...


class DecoderRunner:
    """Knows the model, its cache and the sampler; nothing of queues."""

    def __init__(self, model: Model, *, slots: int, context_tokens: int, blocks: int) -> None:
        self._model = model
        self._sampler = Sampler(model.kernels.largest)
        width = -(-context_tokens // BLOCK_TOKENS)
        self._tables = _Tables(slots + 1, width)
        self._probe_slot = slots
        if model.kernels.device.type == "cuda":
            from .cuda import CudaSteps

            # Rows that only fill up a step write to the scratch block, too.
            model.kernels.reserve(blocks + 1)
            self._logits = CudaSteps(model, slots=slots, table_width=width, scratch=blocks).logits
        else:
            model.kernels.reserve(blocks + 1)
            self._logits = self._on_host
        self._scratch = blocks

    def run(self, batch: list[Work]) -> list[Sampled]:
        """One result for each work that samples or was asked for its prompt, in order."""
        wanted = [_wanted_rows(work) for work in batch]
        logits = self._logits(self._pack(batch, wanted))
        return self._results(batch, wanted, logits) if any(wanted) else []

    def clear(self, blocks: list[int]) -> None:
        """Nothing of what is in there is used again."""
        self._model.kernels.clear(blocks)

    def probe(self) -> None:
        """One token through model and sampler, in a block that no request is given. Raises whatever it meets."""
        sequence = Sequence(Request("probe", (0,), SamplingParams(1, temperature=0.0)), slot=self._probe_slot)
        sequence.blocks = [self._scratch]
        (result,) = self.run([Work(sequence, 0, 1, samples=True)])
        if result.token is None:
            raise ArithmeticError("the model's numbers are not finite")

    def _pack(self, batch: list[Work], wanted: list[list[int]]) -> Packed:
        counts = numpy.fromiter((work.tokens for work in batch), numpy.int32, len(batch))
        starts = numpy.fromiter((work.start for work in batch), numpy.int32, len(batch))
        first = numpy.cumsum(counts, dtype=numpy.int32) - counts
        total = int(counts.sum())
        span = numpy.repeat(numpy.arange(len(batch), dtype=numpy.int32), counts)
        positions = numpy.arange(total, dtype=numpy.int32) - (first - starts)[span]
        tables = self._tables.of(batch)
        places = tables[span, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
        ids = [token for work in batch for token in work.sequence.tokens(work.start, work.end)]
        rows = [
            int(row) + position - work.start
            for work, row, asked in zip(batch, first, wanted, strict=True)
            for position in asked
        ]
        return Packed(
            ids=numpy.array(ids, numpy.int64),
            positions=positions,
            places=places,
            first=first,
            counts=counts,
            starts=starts,
            tables=tables,
            rows=numpy.array(rows, numpy.int64),
        )

    def _on_host(self, packed: Packed) -> torch.Tensor:
        fields = {name: torch.from_numpy(values) for name, values in packed.fields()}
        return self._model.logits(Batch(**fields, singles=packed.singles))

    def _results(self, batch: list[Work], wanted: list[list[int]], logits: torch.Tensor) -> list[Sampled]:
        ends = list(accumulate(map(len, wanted)))
        sampling = [(work, end - 1) for work, end in zip(batch, ends, strict=True) if work.samples]
        rows = [row for _, row in sampling]
        chosen = logits if len(rows) == len(logits) else logits[rows]
        tokens = iter(self._sampler.sample(chosen, [work.sequence for work, _ in sampling]))
        results = []
        for work, asked, end in zip(batch, wanted, ends, strict=True):
            if not asked:
                continue
            result = next(tokens) if work.samples else Sampled()
            if len(asked) > work.samples:
                told = prompt_logprobs(logits[end - len(asked) : end - work.samples], work)
                result = replace(result, prompt_logprobs=told)
            results.append(result)
        return results


def _wanted_rows(work: Work) -> list[int]:
    """Positions whose logits are needed: of the prompt what is told, then the one that is sampled from."""
    return [*work.prompt_rows, *([work.end - 1] if work.samples else [])]


@dataclass(slots=True)
class _Row:
    blocks: list[int]
    known: int = 0


class _Tables:
    """The block table of each slot, written on as its sequence grows."""

    def __init__(self, slots: int, width: int) -> None:
        self._tables = numpy.zeros((slots, width), numpy.int32)
        self._rows: dict[int, _Row] = {}

    def of(self, batch: list[Work]) -> Ints:
        """[spans, blocks of the longest sequence]"""
        for work in batch:
            self._follow(work.sequence)
        width = max(-(-work.end // BLOCK_TOKENS) for work in batch)
        return self._tables[[work.sequence.slot for work in batch], :width]

    def _follow(self, sequence: Sequence) -> None:
        row = self._rows.get(sequence.slot)
        # A sequence that takes a slot, for the first time or again, does so with a new list of blocks.
        if row is None or row.blocks is not sequence.blocks:
            row = self._rows[sequence.slot] = _Row(sequence.blocks)
        if row.known < len(sequence.blocks):
            self._tables[sequence.slot, row.known : len(sequence.blocks)] = sequence.blocks[row.known :]
            row.known = len(sequence.blocks)
