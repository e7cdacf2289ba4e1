"""A draft model: it computes the tokens that the model's next step verifies, one pass for each.

It is a decoder with a cache of its own, run as the model is. Each draft is drawn by the request's own parameters, seed
and position: where both models give a token about the same probability, the one draws what the other would.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from ...kernels.api import Batch, CausalLM
from ..request import Request, Sampled, SamplingParams, ScheduledSequence, Sequence
from ..scheduling.draft_cache import DraftCache
from ..scheduling.model_drafting import CATCH_UP_TOKENS, Drafted, DraftPass
from .runner import DecoderRunner

NO_LOGIT = -1e30


class SameVocabulary:
    """A draft model whose logits have as many columns as the model's: of one tokenizer, models pad differently."""

    def __init__(self, model: CausalLM, vocab_size: int) -> None:
        self.kernels = model.kernels
        self._model, self._vocab_size = model, vocab_size

    def logits(self, batch: Batch) -> torch.Tensor:
        logits = self._model.logits(batch)
        missing = self._vocab_size - logits.shape[1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=NO_LOGIT)
        return logits if missing == 0 else logits[:, : self._vocab_size].contiguous()


@dataclass(slots=True)
class _Row:
    """`draft`: the sequence as the draft model sees it, with the drafts so far. `most`: tokens to draft."""

    sequence: Sequence
    most: int
    start: int  # tokens that its cache has
    draft: Sequence
    tokens: list[int] = field(default_factory=list)


class DraftModel:
    def __init__(
        self,
        runner: DecoderRunner,
        cache: DraftCache,
        *,
        vocab_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`vocab_size`: of the draft model's embedding: other token IDs must not reach it."""
        self._runner, self._cache, self._vocab_size, self._clock = runner, cache, vocab_size, clock

    def draft(self, batch: list[ScheduledSequence]) -> Drafted:
        """Computes the PENDING drafts of a batch, as far as the draft model knows the sequences then."""
        drafted = Drafted({}, [], [])
        rows = [self._row(scheduled) for scheduled in batch if scheduled.drafts]
        active = self._read(sorted(rows, key=lambda row: row.sequence.length - row.start), drafted)
        while active:
            spans = [ScheduledSequence(row.draft, row.draft.length - 1, row.draft.length, True) for row in active]
            active = self._pass(active, spans, drafted)
        for row in rows:
            if row.tokens:
                drafted.tokens[row.sequence.request.id] = tuple(row.tokens)
                self._cache.add_ahead(row.sequence, tuple(row.tokens[:-1]))
        return drafted

    def forget_cached(self, sequence: Sequence) -> None:
        """Clears what the draft model's cache has of a sequence: its numbers may not be finite."""
        self._runner.clear(sequence.block_table)
        self._cache.drop(sequence)

    def _row(self, scheduled: ScheduledSequence) -> _Row:
        sequence = scheduled.sequence
        shadow = Sequence(
            _without_logprobs(sequence.request),
            slot=sequence.slot,
            block_table=sequence.block_table,
            allocation=sequence.allocation,
            output=[*sequence.output],
            draw=sequence.draw,
        )
        return _Row(sequence, len(scheduled.drafts), self._cache.computed(sequence), shadow)

    def _read(self, rows: list[_Row], drafted: Drafted) -> list[_Row]:
        """Reads what the cache lacks of the sequences, shortest first, and drafts for those that it has then."""
        room, read, spans = CATCH_UP_TOKENS + len(rows), [], []
        for row in rows:
            end = min(row.sequence.length, row.start + room)
            span = ScheduledSequence(row.draft, row.start, end, samples=end == row.sequence.length)
            if span.tokens and self._knows(span.ids):
                read.append(row)
                spans.append(span)
                room -= span.tokens
        if not spans:
            return []
        active = self._pass(read, spans, drafted)
        for row, span in zip(read, spans, strict=True):
            if row.sequence.request.id not in drafted.spoiled:
                self._cache.add(row.sequence, span.start, span.end)
        return active

    def _pass(self, rows: list[_Row], spans: list[ScheduledSequence], drafted: Drafted) -> list[_Row]:
        """Runs one pass. Returns the rows that go on."""
        began_s = self._clock()
        results = self._runner.run(spans)
        tokens, pairs = sum(span.tokens for span in spans), sum(span.pairs for span in spans)
        drafted.passes.append(DraftPass(tokens, pairs, self._clock() - began_s))
        sampling = [row for row, span in zip(rows, spans, strict=True) if span.samples]
        return [row for row, result in zip(sampling, results, strict=True) if self._extend(row, result, drafted)]

    def _extend(self, row: _Row, result: Sampled, drafted: Drafted) -> bool:
        """Adds a drafted token to a row. Returns whether another one follows."""
        if result.token is None:
            if not result.no_token_allowed:
                drafted.spoiled.append(row.sequence.request.id)
                row.tokens.clear()
                self.forget_cached(row.sequence)
            return False
        row.tokens.append(result.token)
        row.draft.output.append(result.token)
        return len(row.tokens) < row.most and self._knows((result.token,))

    def _knows(self, tokens: list[int] | tuple[int, ...]) -> bool:
        return max(tokens) < self._vocab_size


def _without_logprobs(request: Request) -> Request:
    """The request as its drafts are drawn: what a client gets to see of the model is computed by the model alone."""
    sampling = request.sampling
    assert isinstance(sampling, SamplingParams), "an embedding has no drafts"
    if sampling.logprobs < 0 and sampling.prompt_logprobs < 0:
        return request
    return replace(request, sampling=replace(sampling, logprobs=-1, prompt_logprobs=-1))
