"""What rounding the weights costs: perplexity and likeliest tokens of accuracy.txt beside those of plain weights.

The plain layers are read again, one at a time, so that they never lie in memory together. They are computed in
bfloat16, as they would be without rounding.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch.nn import functional

from ..kernels.api import BLOCK_TOKENS, Batch, Kernels
from ..kernels.weights import dense
from .decoder import LayerBuilder
from .families import DecoderShape
from .weights import CheckpointWeights

MOST_TOKENS: Final = 384  # of the text, by whatever tokenizer
ROWS_AT_ONCE, VOCABULARY_AT_ONCE = 32, 8192  # of logits


class Inaccurate(Exception):
    """The rounded weights are further from the plain ones than the bound; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of the text: perplexities with plain and with rounded weights, and the share of equal likeliest tokens."""

    tokens: int
    plain_perplexity: float
    perplexity: float
    top1_agreement: float

    @property
    def ratio(self) -> float:
        return self.perplexity / self.plain_perplexity

    def __str__(self) -> str:
        return (
            f"perplexity {self.perplexity:.3f}, {self.plain_perplexity:.3f} with plain weights, a ratio of "
            f"{self.ratio:.4f}; the likeliest token is the same for {self.top1_agreement:.1%} of {self.tokens}"
        )

    def check(self, most_ratio: float) -> None:
        """Raises Inaccurate beyond `most_ratio`, and where a perplexity is no number."""
        if not self.ratio <= most_ratio:
            raise Inaccurate(f"{self}: the bound is {most_ratio}")


@dataclass(frozen=True, slots=True)
class Scores:
    """Of the tokens after the first: log probabilities [T - 1], and the likeliest one at each place [T - 1]."""

    logprobs: torch.Tensor
    likeliest: torch.Tensor

    @property
    def perplexity(self) -> float:
        return math.exp(min(-float(self.logprobs.double().mean()), 700.0))


def compare(ours: Scores, plain: Scores) -> Accuracy:
    """Pure. Both are of the same text."""
    same = (ours.likeliest == plain.likeliest).double().mean()
    return Accuracy(len(ours.logprobs), plain.perplexity, ours.perplexity, float(same))


@torch.inference_mode()
def measure(
    decoder: Any,
    weights: CheckpointWeights,
    kernels: Callable[[], Kernels],
    context_tokens: int,
    tokens: tuple[int, ...],
) -> Accuracy:
    """Compares a decoder, whose KV cache is reserved and unused, with the plain weights of its folder.

    `kernels`: makes the kernels of a plain layer. `tokens`: of the text, at least two, all in the vocabulary.
    """
    blocks = -(-len(tokens) // BLOCK_TOKENS)
    ids = torch.tensor(tokens)
    ours = _scores_of(decoder, _batch(ids, blocks))
    plain = _plain_scores(decoder.shape, weights, kernels, context_tokens, ids)
    return compare(ours, plain)


def _batch(ids: torch.Tensor, blocks: int) -> Batch:
    count = len(ids)
    places = torch.arange(count, dtype=torch.int32)
    zero = torch.zeros(1, dtype=torch.int32)
    return Batch(
        ids=ids,
        positions=places,
        slot_mapping=places,
        first=zero,
        counts=zero + count,
        starts=zero,
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        rows=torch.arange(count),
    )


def _scores_of(decoder: Any, batch: Batch) -> Scores:
    """Some rows at a time: their logits are as wide as the vocabulary."""
    parts = []
    targets = batch.ids[1:]
    for first in range(0, len(targets), ROWS_AT_ONCE):
        rows = torch.arange(first, min(first + ROWS_AT_ONCE, len(targets)))
        logits = decoder.logits(_upto(batch, int(rows[-1]) + 1, rows))
        parts.append(_scores(logits, targets[rows]))
    return Scores(torch.cat([part.logprobs for part in parts]), torch.cat([part.likeliest for part in parts]))


def _upto(batch: Batch, end: int, rows: torch.Tensor) -> Batch:
    """The first tokens up to `end` that are not in the cache yet: from the first of `rows` on."""
    first = int(rows[0])
    return replace(
        batch,
        ids=batch.ids[first:end],
        positions=batch.positions[first:end],
        slot_mapping=batch.slot_mapping[first:end],
        counts=batch.counts * 0 + (end - first),
        starts=batch.starts + first,
        rows=rows - first,
    )


def _scores(logits: torch.Tensor, targets: torch.Tensor) -> Scores:
    logprobs = logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(dim=1)
    return Scores(logprobs, logits.argmax(dim=1))


# --- plain weights ----------------------------------------------------------------------------------------------------


def _plain_scores(
    shape: DecoderShape,
    weights: CheckpointWeights,
    kernels: Callable[[], Kernels],
    context_tokens: int,
    ids: torch.Tensor,
) -> Scores:
    table = weights.take("model.embed_tokens.weight")
    x = table[ids].to(torch.bfloat16)
    if shape.embedding_factor != 1.0:
        x = x * torch.tensor(shape.embedding_factor, dtype=torch.bfloat16)
    batch = _batch(ids, -(-len(ids) // BLOCK_TOKENS))
    for index, about in enumerate(shape.layers):
        made = kernels()
        layer = LayerBuilder(shape, weights, made, context_tokens).layer(index, about)
        made.reserve(batch.block_tables.shape[1])
        x = layer(x, batch)
    norm = LayerBuilder(shape, weights, kernels(), context_tokens).norm("model.norm")
    head = table if shape.tied else dense(weights.take_linear("lm_head", shape.vocabulary, shape.hidden))
    return _head_scores(norm(x)[:-1].float(), head, ids[1:], shape)


def _head_scores(x: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, shape: DecoderShape) -> Scores:
    """A part of the vocabulary at a time: its rows are widened to float32."""
    sums, tops, values = [], [], torch.empty(len(x))
    for first in range(0, len(head), VOCABULARY_AT_ONCE):
        rows = head[first : first + VOCABULARY_AT_ONCE]
        logits = functional.linear(x, rows.float()) / shape.logits_divisor
        if shape.logits_cap:
            logits = torch.tanh(logits / shape.logits_cap) * shape.logits_cap
        sums.append(logits.logsumexp(dim=1))
        tops.append(logits.max(dim=1))
        here = (targets >= first) & (targets < first + len(rows))
        values[here] = logits[here].gather(1, (targets[here] - first)[:, None])[:, 0]
    part = torch.stack([top.values for top in tops]).argmax(dim=0)
    each = torch.stack([top.indices for top in tops]).gather(0, part[None])[0]
    return Scores(values - torch.stack(sums).logsumexp(dim=0), part * VOCABULARY_AT_ONCE + each)
