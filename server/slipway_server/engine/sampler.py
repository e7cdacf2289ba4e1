"""Logits to token ids, each row by its own request's rules, whatever else is in the batch."""

import numpy
import torch

from .request import SamplingParams, Sequence


def sample(logits: torch.Tensor, sequences: list[Sequence]) -> list[int | None]:
    """One token for each row; None where the logits are not finite."""
    logits = logits.float()
    finite = torch.isfinite(logits).all(dim=-1)
    params = [_sampling(sequence) for sequence in sequences]
    for row, sequence in enumerate(sequences):
        if params[row].penalised and sequence.output:
            _penalise(logits[row], sequence.output, params[row])
    tokens = logits.argmax(dim=-1)
    drawn = [row for row, p in enumerate(params) if not p.greedy and finite[row]]
    if drawn:
        tokens[drawn] = _draw(
            logits[drawn], [params[row] for row in drawn], [len(sequences[row].output) for row in drawn]
        )
    return [token if ok else None for token, ok in zip(tokens.tolist(), finite.tolist(), strict=True)]


def _sampling(sequence: Sequence) -> SamplingParams:
    assert sequence.request.sampling is not None, "an embedding was sent to the sampler"
    return sequence.request.sampling


def _penalise(row: torch.Tensor, output: list[int], params: SamplingParams) -> None:
    tokens, counts = torch.unique(torch.tensor(output, device=row.device), return_counts=True)
    row[tokens] -= params.frequency_penalty * counts + params.presence_penalty


def _draw(logits: torch.Tensor, params: list[SamplingParams], positions: list[int]) -> torch.Tensor:
    """Exponential race: argmax of p/noise draws from p without a cumulative sum over the vocabulary."""
    temperature = torch.tensor([p.temperature for p in params], device=logits.device)
    probabilities = torch.softmax(logits / temperature[:, None], dim=-1)
    if any(p.top_k or p.top_p < 1.0 for p in params):
        probabilities = _truncate(probabilities, params)
    rows = [_noise(p.seed, position, logits.shape[-1]) for p, position in zip(params, positions, strict=True)]
    noise = torch.from_numpy(numpy.stack(rows)).to(logits.device)
    return (probabilities / noise).argmax(dim=-1)


def _truncate(probabilities: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """Keeps the top_k likeliest tokens, then the smallest head of them that holds top_p of what is left."""
    device, vocabulary = probabilities.device, probabilities.shape[-1]
    top_k = torch.tensor([p.top_k or vocabulary for p in params], device=device)[:, None]
    top_p = torch.tensor([p.top_p for p in params], device=device)[:, None]
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(torch.arange(vocabulary, device=device) >= top_k, 0.0)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before > top_p * ordered.sum(dim=-1, keepdim=True), 0.0)
    return torch.zeros_like(probabilities).scatter_(-1, order, ordered)


def _noise(seed: int, position: int, size: int) -> numpy.ndarray:
    """Keyed by seed and position only: the same draw alone, batched, or resumed on another pod."""
    generator = numpy.random.Generator(numpy.random.Philox(key=seed % 2**64, counter=position << 64))
    return numpy.maximum(generator.standard_exponential(size, dtype=numpy.float32), numpy.float32(1e-30))
