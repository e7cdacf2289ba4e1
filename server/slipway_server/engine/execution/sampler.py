"""Logits to token ids: each row by its own request's parameters, independent of the rest of the batch."""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Rows
from concurrent.futures import ThreadPoolExecutor

import numpy
import torch
from numpy.typing import NDArray

from ..request import Logprobs, Sampled, SamplingParams, ScheduledSequence, Sequence

# The likeliest tokens that are searched for candidates first. More are searched when these are not enough.
CANDIDATES = 1024
NOISE_THREADS = 8
LEAST_TEMPERATURE = (
    0.01  # as in vLLM: below it, numbers over- and underflow long before answers differ from greedy ones
)
# What a number may become by rules, so that dividing by a temperature and summing stay finite.
LARGEST_EDITED = 1e30

# Of rows whose tokens a grammar restricts: whether each token is allowed.
AllowedTokens = Mapping[int, NDArray[numpy.bool_]]
Largest = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class Sampler:
    """Keeps nothing of rows. For logits on a GPU, several threads make the noise of a step while they come to be."""

    def __init__(self, largest: Largest) -> None:
        """`largest` is that of the kernels that computed the logits."""
        self._largest = largest
        self._pool: ThreadPoolExecutor | None = None

    def sample(
        self, logits: torch.Tensor, sequences: Rows[Sequence], allowed: AllowedTokens | None = None
    ) -> list[Sampled]:
        """One result for each row of float32 [rows, vocabulary]; no token where the logits are not finite, or where
        the request's own rules leave none. A token that these forbid is never the result, whatever the other numbers.

        Log probabilities are those of the model, before any rule, as in OpenAI's and vLLM's APIs.
        """
        if not sequences:
            return []
        params = [params_of(sequence) for sequence in sequences]
        # Drawn while a GPU still computes the logits, because reading them waits for it. On a CPU they are ready, and
        # its caches hold the noise of one row only.
        noises = dict(self._draw_noise(sequences, params, logits.shape[-1])) if logits.is_cuda else {}
        chosen, all_finite = self._largest(logits)
        finite = all_finite.tolist()
        edited = _edit(logits, sequences, params, allowed or {})
        forbidden_all = [False] * len(finite)
        if edited is not logits:
            best, chosen = edited.max(dim=-1)
            forbidden_all = (best == -torch.inf).tolist()
        for row, (sequence, p) in enumerate(zip(sequences, params, strict=True)):
            if not p.greedy and finite[row] and not forbidden_all[row]:
                noise = noises[row] if row in noises else _noise(p.seed, len(sequence.output), logits.shape[-1])
                chosen[row] = _draw(edited[row], p, noise)
        tokens = chosen.tolist()
        logprobs = _logprobs_of_rows(logits, tokens, params, allowed or {})
        return [
            Sampled(token, None, logprobs.get(row)) if ok and not none else Sampled(no_token_allowed=ok)
            for row, (token, ok, none) in enumerate(zip(tokens, finite, forbidden_all, strict=True))
        ]

    def _draw_noise(
        self, sequences: Rows[Sequence], params: Rows[SamplingParams], size: int
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Of each row that draws. NumPy's generators work without the interpreter's lock."""
        self._pool = self._pool or ThreadPoolExecutor(NOISE_THREADS, "noise")
        rows = [row for row, p in enumerate(params) if not p.greedy]
        made = self._pool.map(lambda row: _noise(params[row].seed, len(sequences[row].output), size), rows)
        return zip(rows, made, strict=True)


def params_of(sequence: Sequence) -> SamplingParams:
    assert sequence.request.sampling is not None, "an embedding was sent to the sampler"
    return sequence.request.sampling


# --- rules that change logits -----------------------------------------------------------------------------------------


def _edit(
    logits: torch.Tensor, sequences: Rows[Sequence], params: Rows[SamplingParams], allowed: AllowedTokens
) -> torch.Tensor:
    """A copy where something changes, else the logits themselves."""
    changed = [row for row, p in enumerate(params) if p.edits_logits]
    if not changed and not allowed:
        return logits
    edited = logits.clone()
    for row in changed:
        edit(edited[row], sequences[row], params[row])
    for row, tokens in allowed.items():
        edited[row].masked_fill_(_as_tensor(~tokens, logits.device), -torch.inf)
    return edited


def _as_tensor(tokens: NDArray[numpy.bool_], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(tokens).to(device, non_blocking=True)


def edit(row: torch.Tensor, sequence: Sequence, p: SamplingParams) -> None:
    """In place: bias and penalties in vLLM's order, then forbidden tokens, so that no bias can allow them again."""
    forbidden = _forbidden(len(row), sequence, p, row.device)
    for token, bias in p.logit_bias:
        row[token] += _bounded(bias)
    _penalise(row, sequence, p)
    row.clamp_(-LARGEST_EDITED, LARGEST_EDITED)
    if forbidden is not None:
        row.masked_fill_(forbidden, -torch.inf)


def _forbidden(size: int, sequence: Sequence, p: SamplingParams, device: torch.device) -> torch.Tensor | None:
    """A bool for each token of the vocabulary; None where nothing is forbidden."""
    tokens: list[int] = []
    for words in p.bad_words:
        *before, last = words
        if sequence.output[len(sequence.output) - len(before) :] == before:
            tokens.append(last)
    if len(sequence.output) < p.min_tokens:
        tokens += p.stop_token_ids
    tokens = [token for token in tokens if token < size]  # the model cannot generate the others
    if not tokens and not p.allowed_token_ids:
        return None
    forbidden = torch.full((size,), bool(p.allowed_token_ids), device=device)
    forbidden[list(p.allowed_token_ids)] = False
    forbidden[tokens] = True
    return forbidden


def _penalise(row: torch.Tensor, sequence: Sequence, p: SamplingParams) -> None:
    """What becomes too large is infinite at most, never "not a number": only finite numbers are taken from it."""
    if p.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*sequence.request.prompt, *sequence.output}), device=row.device)
        values, penalty = row[seen], max(1 / LARGEST_EDITED, _bounded(p.repetition_penalty))
        row[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if (p.frequency_penalty or p.presence_penalty) and sequence.output:
        tokens, counts = torch.unique(torch.tensor(sequence.output, device=row.device), return_counts=True)
        row[tokens] -= _bounded(p.frequency_penalty) * counts + _bounded(p.presence_penalty)


def _bounded(number: float) -> float:
    return max(-LARGEST_EDITED, min(LARGEST_EDITED, number))


# --- drawing ----------------------------------------------------------------------------------------------------------


def _draw(row: torch.Tensor, p: SamplingParams, noise: torch.Tensor) -> torch.Tensor:
    """Draw a token id by the exponential race, argmax of probability / noise: a 0-dim tensor on the row's device."""
    noise = noise.to(row.device, non_blocking=True)
    if not (p.top_k or p.top_p < 1.0 or p.min_p):
        return (torch.softmax(row / _temperature(p), dim=-1) / noise).argmax()
    tokens, weights = _candidates(row, p)
    return tokens[(weights / noise[tokens]).argmax()]


def _temperature(p: SamplingParams) -> float:
    return max(LEAST_TEMPERATURE, _bounded(p.temperature))


def _candidates(row: torch.Tensor, p: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, likeliest first, and their probabilities: of the top_k, the head that holds top_p, above min_p.

    Only a part of the vocabulary is sorted, as long as that part contains all candidates.
    """
    scaled = row / _temperature(p)
    total = torch.logsumexp(scaled, dim=-1)
    size = min(len(row), p.top_k or CANDIDATES)
    while True:
        values, tokens = scaled.topk(size)
        weights = torch.exp(values - total)
        enough = p.top_k or size == len(row) or _reaches(weights, p)
        if enough:
            break
        size = min(len(row), size * 8)
    if p.top_k:
        weights = weights / weights.sum()
    before = weights.cumsum(dim=-1) - weights
    selected = (before <= p.top_p * (weights.sum() if p.top_k else 1.0)) & (weights >= p.min_p * weights[0])
    selected[0] = True  # despite rounding: at least one candidate remains
    return tokens[selected], weights[selected]


def _reaches(weights: torch.Tensor, p: SamplingParams) -> bool:
    """Whether every candidate is among these, the likeliest ones."""
    by_share = p.top_p < 1.0 and float(weights.sum()) > p.top_p
    by_least = p.min_p > 0.0 and float(weights[-1]) < p.min_p * float(weights[0])
    return by_share or by_least


def _noise(seed: int, position: int, size: int) -> torch.Tensor:
    """Keyed by seed and position only: the same draw alone, batched, or resumed on another pod."""
    generator = numpy.random.Generator(numpy.random.Philox(key=seed % 2**64, counter=position << 64))
    noise = generator.standard_exponential(size, dtype=numpy.float32)
    return torch.from_numpy(numpy.maximum(noise, numpy.float32(1e-30)))


# --- log probabilities ------------------------------------------------------------------------------------------------


def log_probabilities(logits: torch.Tensor, tokens: list[int], count: int) -> tuple[Logprobs, ...]:
    """Of one token for each row of float32 [rows, vocabulary], with the `count` likeliest ones beside it."""
    if not tokens:
        return ()
    own = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])
    total = logits.logsumexp(dim=-1, keepdim=True)
    values, ids = logits.topk(min(count, logits.shape[-1]), dim=-1)
    ranks = ((logits > own).sum(dim=-1) + 1).tolist()
    values = torch.cat((own, values), dim=-1) - total
    rows = zip(tokens, ids.tolist(), values.tolist(), ranks, strict=True)
    return tuple(Logprobs((token, *others), tuple(row), rank) for token, others, row, rank in rows)


def _logprobs_of_rows(
    logits: torch.Tensor, tokens: list[int], params: Rows[SamplingParams], allowed: AllowedTokens
) -> dict[int, Logprobs]:
    """Rows with the same number of alternatives are computed together."""
    logprobs: dict[int, Logprobs] = {}
    for count in {p.logprobs for p in params} - {-1}:
        rows = [row for row, p in enumerate(params) if p.logprobs == count]
        chosen = logits if len(rows) == len(logits) else logits[rows]
        logprobs |= zip(rows, log_probabilities(chosen, [tokens[row] for row in rows], count), strict=True)
    for row in [row for row in allowed if params[row].logprobs_of_allowed]:
        logprobs[row] = _allowed_alternatives(logits[row], tokens[row], params[row].logprobs, allowed[row])
    return logprobs


def _allowed_alternatives(row: torch.Tensor, token: int, count: int, allowed: NDArray[numpy.bool_]) -> Logprobs:
    """As `log_probabilities`, of the model's own distribution, without alternatives that are not allowed."""
    (own,) = log_probabilities(row[None], [token], 0)
    ids = torch.from_numpy(allowed.nonzero()[0]).to(row.device)
    values, best = row[ids].topk(min(count, len(ids)))
    values = values - row.logsumexp(dim=-1)
    return Logprobs((token, *ids[best].tolist()), (own.values[0], *values.tolist()), own.rank)


def prompt_logprobs(logits: torch.Tensor, scheduled: ScheduledSequence) -> tuple[Logprobs, ...]:
    """Of the prompt's token after each of `scheduled.prompt_logprob_positions`, whose logits these are, in order."""
    rows = scheduled.prompt_logprob_positions
    following = list(scheduled.sequence.request.prompt[rows.start + 1 : rows.stop + 1])
    return log_probabilities(logits, following, params_of(scheduled.sequence).prompt_logprobs)
