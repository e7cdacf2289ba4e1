"""Runs a scheduler's batch: packs it into tensors, computes logits with the decoder, and samples tokens."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import numpy
import torch

from ...kernels.api import BLOCK_TOKENS, Batch, CausalLM
from ...kernels.cuda import DrawnTokens, to_host
from ...kernels.draws import TokenMasks
from ...kernels.packing import Ints, Packed
from ..grammars.masks import Mask, Masks, grammar_of
from ..request import PENDING, Request, Sampled, SamplingParams, ScheduledSequence, Sequence
from ..scheduling.drafting import verified
from .sampler import Sampler, drawn, prompt_logprobs


class DecoderRunner:
    """Model, KV cache and sampler. It knows nothing of queues."""

    def __init__(
        self,
        model: CausalLM,
        *,
        slots: int,
        context_tokens: int,
        blocks: int,
        masks: Masks | None = None,
        captures: bool = True,
        slot_of: Callable[[str], int] | None = None,
    ) -> None:
        """`captures`: on a GPU, steps of decodes are captured as CUDA graphs and replayed.

        `slot_of`: the slot of a request's adapter by its digest, or -1; None: no request has one.
        """
        self._model = model
        self._masks, self._slot_of = masks, slot_of
        self._sampler = Sampler(model.kernels)
        width = -(-context_tokens // BLOCK_TOKENS)
        self._block_tables = _BlockTables(slots + 1, width)
        self._probe_slot = slots
        model.kernels.reserve(blocks + 1)  # the last one is scratch: no sequence gets it
        self._logits = self._on_host
        if model.kernels.device.type == "cuda":
            from ...kernels.cuda import CudaSteps

            steps = CudaSteps(model, slots=slots, table_width=width, scratch=blocks, captures=captures)
            self._logits = steps.logits
        self._scratch = blocks

    def run(self, batch: list[ScheduledSequence]) -> list[Sampled]:
        """One result for each sequence that samples or needs prompt log probabilities, in order."""
        positions = [_logits_positions(scheduled) for scheduled in batch]
        if self._masks:
            self._masks.begin(batch)
        logits = self._logits(self._pack(batch, positions))
        return self._results(batch, positions, logits) if any(positions) else []

    def launch(self, batch: list[ScheduledSequence], after: "Launched | None" = None) -> "Launched":
        """Starts a step without waiting for its tokens. All its sequences must be `draws_only`.

        `after`: the step before, whose tokens may still be PENDING: the device reads them where it has drawn them.
        """
        positions = [_logits_positions(scheduled) for scheduled in batch]
        packed = self._pack(batch, positions)
        logits = self._logits(packed, after.tokens_for(batch, packed) if after else None)
        sequences = [scheduled.sequence for scheduled in batch if scheduled.samples]
        if not sequences:
            return Launched([], torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.bool))
        return Launched(sequences, *self._sampler.draw(logits, sequences))

    def clear(self, blocks: list[int]) -> None:
        """Zeroes these blocks of the KV cache."""
        self._model.kernels.clear(blocks)

    def probe(self) -> None:
        """Computes one token in the scratch block, which no request gets. Raises whatever fails."""
        sequence = Sequence(Request("probe", (0,), SamplingParams(1, temperature=0.0)), slot=self._probe_slot)
        sequence.block_table = [self._scratch]
        (result,) = self.run([ScheduledSequence(sequence, 0, 1, samples=True)])
        if result.token is None:
            raise ArithmeticError("the model's numbers are not finite")

    def _pack(self, batch: list[ScheduledSequence], logits_positions: list[list[int]]) -> Packed:
        counts = numpy.fromiter((scheduled.tokens for scheduled in batch), numpy.int32, len(batch))
        starts = numpy.fromiter((scheduled.start for scheduled in batch), numpy.int32, len(batch))
        first = numpy.cumsum(counts, dtype=numpy.int32) - counts
        total = int(counts.sum())
        span = numpy.repeat(numpy.arange(len(batch), dtype=numpy.int32), counts)
        positions = numpy.arange(total, dtype=numpy.int32) - (first - starts)[span]
        block_tables = self._block_tables.rows(batch)
        slot_mapping = block_tables[span, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
        # PENDING stands in it for tokens that only the device has: `Launched.tokens_for` finds them.
        ids = [token for scheduled in batch for token in scheduled.ids]
        rows = [
            int(row) + position - scheduled.start
            for scheduled, row, needed in zip(batch, first, logits_positions, strict=True)
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
            adapters=self._adapters(batch, counts),
        )

    def _adapters(self, batch: list[ScheduledSequence], counts: Ints) -> Ints | None:
        """The slot of each token's adapter; None where no sequence has one: such steps are computed as ever."""
        if self._slot_of is None:
            return None
        slots = [self._slot_of(scheduled.sequence.request.adapter) for scheduled in batch]
        return numpy.repeat(numpy.array(slots, numpy.int32), counts) if max(slots) >= 0 else None

    def _on_host(self, packed: Packed, drawn: DrawnTokens | None = None) -> torch.Tensor:
        fields = {name: torch.from_numpy(values) for name, values in packed.fields()}
        if drawn:
            drawn.put_into(fields["ids"])
        return self._model.logits(Batch(**fields, num_decodes=packed.num_decodes))

    def _results(
        self, batch: list[ScheduledSequence], positions: list[list[int]], logits: torch.Tensor
    ) -> list[Sampled]:
        ends = list(accumulate(map(len, positions)))
        masks = self._masks.collect(batch) if self._masks else {}
        held_back = {name: held for name, mask in masks.items() if (held := _held_back(mask))}
        sampling = [
            (scheduled, end)
            for scheduled, end in zip(batch, ends, strict=True)
            if scheduled.samples and scheduled.sequence.request.id not in held_back
        ]
        rows = [row for scheduled, end in sampling for row in range(end - len(scheduled.sampled_positions), end)]
        chosen = logits if len(rows) == len(logits) else logits[rows]
        sequences = [sequence for scheduled, _ in sampling for sequence in scheduled.sampled_sequences]
        tokens = iter(self._sampler.sample(chosen, sequences, self._token_masks(sequences, masks)))
        if masks:
            self._model.kernels.rest()  # the next masks are computed while this process prepares its next step
        results = []
        for scheduled, needed, end in zip(batch, positions, ends, strict=True):
            if not needed:
                continue
            if held := held_back.get(scheduled.sequence.request.id) if grammar_of(scheduled) else None:
                result = held
            elif scheduled.drafts:
                result = verified(scheduled.drafts, [next(tokens) for _ in scheduled.sampled_positions])
            else:
                result = next(tokens) if scheduled.samples else Sampled()
            if len(needed) > len(scheduled.sampled_positions):  # never with drafts: its prompt is not yet computed
                logprobs = prompt_logprobs(logits[end - len(needed) : end - scheduled.samples], scheduled)
                result = replace(result, prompt_logprobs=logprobs)
            results.append(result)
        return results

    def _token_masks(self, sequences: list[Sequence], masks: dict[str, Mask]) -> TokenMasks | None:
        if self._masks is None or not masks:
            return None
        found = [masks.get(sequence.request.id) for sequence in sequences]
        return TokenMasks(self._masks.bits, {row: mask.row for row, mask in enumerate(found) if mask})


class Launched:
    """A step that the device computes. Its tensors have one row for each sequence that samples."""

    def __init__(self, sequences: list[Sequence], tokens: torch.Tensor, finite: torch.Tensor) -> None:
        self._tokens = tokens
        self._row = {id(sequence): row for row, sequence in enumerate(sequences)}
        self._read = to_host(tokens, finite)

    def results(self) -> list[Sampled]:
        """Waits for the device and returns one result for each row, as `DecoderRunner.run` does."""
        tokens, finite = self._read()
        return [drawn(token, ok) for token, ok in zip(tokens.tolist(), finite.tolist(), strict=True)]

    def tokens_for(self, batch: list[ScheduledSequence], packed: Packed) -> DrawnTokens | None:
        """The drawn tokens that the next step, `batch`, reads in place of PENDING; None if it needs none."""
        places = numpy.flatnonzero(packed.ids == PENDING)
        if not len(places):
            return None
        # A PENDING token is the last one of its span.
        spans = numpy.searchsorted(packed.first, places, side="right") - 1
        rows = [self._row[id(batch[span].sequence)] for span in spans]
        return DrawnTokens(self._tokens, numpy.array(rows, numpy.int64), places)


def _held_back(mask: Mask) -> Sampled | None:
    """The result of a sequence that gets no token in this step: refused or late; None when it may get one."""
    if mask.refusal:
        return Sampled(refusal=mask.refusal)
    return Sampled(late=True) if mask.row < 0 else None


def _logits_positions(scheduled: ScheduledSequence) -> list[int]:
    """Positions whose logits are needed: those for prompt log probabilities, then those that are sampled from."""
    return [*scheduled.prompt_logprob_positions, *scheduled.sampled_positions]


class _BlockTables:
    """The block table of each slot as rows of one array. New blocks are appended as the sequence grows."""

    def __init__(self, slots: int, width: int) -> None:
        self._rows = numpy.zeros((slots, width), numpy.int32)
        self._allocations = [-1] * slots  # that each row was written for
        self._lengths = [0] * slots

    def rows(self, batch: list[ScheduledSequence]) -> Ints:
        """The block tables of a batch: [spans, blocks of the longest sequence]."""
        for scheduled in batch:
            self._update(scheduled.sequence)
        width = max(-(-scheduled.end // BLOCK_TOKENS) for scheduled in batch)
        return self._rows[[scheduled.sequence.slot for scheduled in batch], :width]

    def _update(self, sequence: Sequence) -> None:
        slot, block_table = sequence.slot, sequence.block_table
        if self._allocations[slot] != sequence.allocation:
            self._allocations[slot], self._lengths[slot] = sequence.allocation, 0
        written = self._lengths[slot]
        if written < len(block_table):
            self._rows[slot, written : len(block_table)] = block_table[written:]
            self._lengths[slot] = len(block_table)
