"""A scheduler's batch to tensors, through the decoder, to sampled tokens."""

from dataclasses import replace
from itertools import accumulate

import numpy
import torch

from ..kernels.api import BLOCK_TOKENS, Batch, CausalLM
from ..kernels.packing import Ints, Packed
from .request import Request, Sampled, SamplingParams, Sequence, Work
from .sampler import Sampler, prompt_logprobs


class DecoderRunner:
    """Model, KV cache and sampler. It knows nothing of queues."""

    def __init__(self, model: CausalLM, *, slots: int, context_tokens: int, blocks: int) -> None:
        self._model = model
        self._sampler = Sampler(model.kernels.largest)
        width = -(-context_tokens // BLOCK_TOKENS)
        self._block_tables = _BlockTables(slots + 1, width)
        self._probe_slot = slots
        model.kernels.reserve(blocks + 1)  # the last one is scratch: no sequence gets it
        self._logits = self._on_host
        if model.kernels.device.type == "cuda":
            from ..kernels.cuda import CudaSteps

            self._logits = CudaSteps(model, slots=slots, table_width=width, scratch=blocks).logits
        self._scratch = blocks

    def run(self, batch: list[Work]) -> list[Sampled]:
        """One result for each work that samples or needs prompt log probabilities, in order."""
        positions = [_logits_positions(work) for work in batch]
        logits = self._logits(self._pack(batch, positions))
        return self._results(batch, positions, logits) if any(positions) else []

    def clear(self, blocks: list[int]) -> None:
        """Zeroes these blocks of the KV cache."""
        self._model.kernels.clear(blocks)

    def probe(self) -> None:
        """Computes one token in the scratch block, which no request gets. Raises whatever fails."""
        sequence = Sequence(Request("probe", (0,), SamplingParams(1, temperature=0.0)), slot=self._probe_slot)
        sequence.block_table = [self._scratch]
        (result,) = self.run([Work(sequence, 0, 1, samples=True)])
        if result.token is None:
            raise ArithmeticError("the model's numbers are not finite")

    def _pack(self, batch: list[Work], logits_positions: list[list[int]]) -> Packed:
        counts = numpy.fromiter((work.tokens for work in batch), numpy.int32, len(batch))
        starts = numpy.fromiter((work.start for work in batch), numpy.int32, len(batch))
        first = numpy.cumsum(counts, dtype=numpy.int32) - counts
        total = int(counts.sum())
        span = numpy.repeat(numpy.arange(len(batch), dtype=numpy.int32), counts)
        positions = numpy.arange(total, dtype=numpy.int32) - (first - starts)[span]
        block_tables = self._block_tables.rows(batch)
        slot_mapping = block_tables[span, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
        ids = [token for work in batch for token in work.sequence.tokens(work.start, work.end)]
        rows = [
            int(row) + position - work.start
            for work, row, needed in zip(batch, first, logits_positions, strict=True)
            for position in needed
        ]
        return Packed(
            ids=numpy.array(ids, numpy.int64),
            positions=positions,
            slot_mapping=slot_mapping,
            first=first,
            counts=counts,
            starts=starts,
            block_tables=block_tables,
            rows=numpy.array(rows, numpy.int64),
        )

    def _on_host(self, packed: Packed) -> torch.Tensor:
        fields = {name: torch.from_numpy(values) for name, values in packed.fields()}
        return self._model.logits(Batch(**fields, num_decodes=packed.num_decodes))

    def _results(self, batch: list[Work], positions: list[list[int]], logits: torch.Tensor) -> list[Sampled]:
        ends = list(accumulate(map(len, positions)))
        sampling = [(work, end - 1) for work, end in zip(batch, ends, strict=True) if work.samples]
        rows = [row for _, row in sampling]
        chosen = logits if len(rows) == len(logits) else logits[rows]
        tokens = iter(self._sampler.sample(chosen, [work.sequence for work, _ in sampling]))
        results = []
        for work, needed, end in zip(batch, positions, ends, strict=True):
            if not needed:
                continue
            result = next(tokens) if work.samples else Sampled()
            if len(needed) > work.samples:
                logprobs = prompt_logprobs(logits[end - len(needed) : end - work.samples], work)
                result = replace(result, prompt_logprobs=logprobs)
            results.append(result)
        return results


def _logits_positions(work: Work) -> list[int]:
    """Positions whose logits are needed: those for prompt log probabilities, then the one that is sampled from."""
    return [*work.prompt_logprob_positions, *([work.end - 1] if work.samples else [])]


class _BlockTables:
    """The block table of each slot as rows of one array. New blocks are appended as the sequence grows."""

    def __init__(self, slots: int, width: int) -> None:
        self._rows = numpy.zeros((slots, width), numpy.int32)
        self._allocations = [-1] * slots  # that each row was written for
        self._lengths = [0] * slots

    def rows(self, batch: list[Work]) -> Ints:
        """[spans, blocks of the longest sequence]"""
        for work in batch:
            self._update(work.sequence)
        width = max(-(-work.end // BLOCK_TOKENS) for work in batch)
        return self._rows[[work.sequence.slot for work in batch], :width]

    def _update(self, sequence: Sequence) -> None:
        slot, block_table = sequence.slot, sequence.block_table
        if self._allocations[slot] != sequence.allocation:
            self._allocations[slot], self._lengths[slot] = sequence.allocation, 0
        written = self._lengths[slot]
        if written < len(block_table):
            self._rows[slot, written : len(block_table)] = block_table[written:]
            self._lengths[slot] = len(block_table)
