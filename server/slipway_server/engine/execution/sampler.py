"""Samples token IDs from logits: each row by its own request's parameters, independent of the rest of the batch."""

from collections.abc import Sequence as Rows
from typing import Protocol

import torch

from ...kernels.draws import LIKELIEST, Draws, TokenMasks, draw_by
from ...sampling import DRAW_RULES
from ..request import Logprobs, Sampled, SamplingParams, ScheduledSequence, Sequence

LEAST_TEMPERATURE = (
    0.01  # as in vLLM: below it, numbers over- and underflow long before answers differ from greedy ones
)
# Bound of edited logits and of the parameters that edit them: division by a temperature and sums then stay finite.
LARGEST_EDITED = 1e30


class Chooser(Protocol):
    """What the sampler needs of the kernels that computed the logits."""

    def sample(self, logits: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]: ...

    def mask(self, logits: torch.Tensor, masks: TokenMasks) -> torch.Tensor: ...


class Sampler:
    """Chooses the next token of each row of logits. Keeps no state between steps."""

    def __init__(self, kernels: Chooser) -> None:
        self._kernels = kernels

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, sequences: Rows[Sequence], masks: TokenMasks | None = None) -> list[Sampled]:
        """One result for each row of float32 logits [rows, vocabulary], which are overwritten.

        A result has no token if the model's logits are not finite, or if the request's rules forbid every token. A
        forbidden token is never chosen, whatever the logits are. Log probabilities are those of the model, before any
        rule, as in OpenAI's and vLLM's APIs.
        """
        if not sequences:
            return []
        params = [params_of(sequence) for sequence in sequences]
        edited = [row for row, p in enumerate(params) if p.edits_logits]
        masked = masks.rows if masks else {}
        changed = {*edited, *masked}
        given = logits.clone() if any(params[row].logprobs >= 0 for row in changed) else logits
        finite = self._apply_rules(logits, sequences, edited, masks)
        chosen, all_finite = self.draw(logits, sequences)
        tokens, oks = chosen.tolist(), all_finite.tolist()
        logprobs = _logprobs_of_rows(given, tokens, params, masks)
        return [drawn(token, finite.get(row, oks[row]), logprobs.get(row)) for row, token in enumerate(tokens)]

    @torch.inference_mode()
    def draw(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws a token for each row, as `Kernels.sample` does, without waiting for the device."""
        return self._kernels.sample(logits, _draws_of(sequences))

    def _apply_rules(
        self, logits: torch.Tensor, sequences: Rows[Sequence], edited: list[int], masks: TokenMasks | None
    ) -> dict[int, bool]:
        """Edits rows in place. Returns, by edited row, whether the model's own logits were finite before the rules."""
        finite: dict[int, bool] = {}
        if edited:
            finite = dict(zip(edited, torch.isfinite(logits[edited].sum(dim=-1)).tolist(), strict=True))
        for row in edited:
            edit(logits[row], sequences[row], params_of(sequences[row]))
        if masks and masks.rows:
            found = self._kernels.mask(logits, masks).tolist()
            finite = dict(zip(masks.rows, found, strict=True)) | finite
        return finite


def drawn(token: int, finite: bool, logprobs: Logprobs | None = None) -> Sampled:
    """The result of a row. `token` is -1 where the request's rules forbid every token."""
    return Sampled(token, None, logprobs) if finite and token >= 0 else Sampled(no_token_allowed=finite)


def _draws_of(sequences: Rows[Sequence]) -> Draws:
    """Draws are keyed by seed and position only: they are the same alone, batched, or resumed on another pod."""
    for sequence in sequences:
        if not sequence.draw:
            sequence.draw = _draw_of(params_of(sequence))
    return Draws([sequence.draw for sequence in sequences], [len(sequence.output) for sequence in sequences])


def _draw_of(p: SamplingParams) -> bytes:
    if p.greedy:
        return LIKELIEST
    temperature = max(LEAST_TEMPERATURE, _bounded(p.temperature))
    return draw_by(p.seed, temperature, **{name: getattr(p, name) for name in DRAW_RULES})


def params_of(sequence: Sequence) -> SamplingParams:
    assert sequence.request.sampling is not None, "an embedding was sent to the sampler"
    return sequence.request.sampling


# --- rules that change logits -----------------------------------------------------------------------------------------


def edit(row: torch.Tensor, sequence: Sequence, p: SamplingParams) -> None:
    """Edits a row in place: bias and penalties in vLLM's order, then forbidden tokens, so that no bias allows them."""
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
    """Applies the penalties in place. Logits may overflow to infinity, but not to NaN: the penalties are finite."""
    if p.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*sequence.request.prompt, *sequence.output}), device=row.device)
        values, penalty = row[seen], max(1 / LARGEST_EDITED, _bounded(p.repetition_penalty))
        row[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if (p.frequency_penalty or p.presence_penalty) and sequence.output:
        tokens, counts = torch.unique(torch.tensor(sequence.output, device=row.device), return_counts=True)
        row[tokens] -= _bounded(p.frequency_penalty) * counts + _bounded(p.presence_penalty)


def _bounded(number: float) -> float:
    return max(-LARGEST_EDITED, min(LARGEST_EDITED, number))


# --- log probabilities ------------------------------------------------------------------------------------------------


def log_probabilities(logits: torch.Tensor, tokens: list[int], count: int) -> tuple[Logprobs, ...]:
    """Log probabilities of `tokens`, one for each row of float32 [rows, vocabulary], and of the `count` likeliest."""
    if not tokens:
        return ()
    places = torch.tensor(tokens, device=logits.device)[:, None]
    own = logits.gather(1, places)
    total = logits.logsumexp(dim=-1, keepdim=True)
    values, ids = logits.topk(min(count, logits.shape[-1]), dim=-1)
    # Rank 1 is the token that greedy sampling chooses, the first of equal ones. NaN is not below anything, so a model
    # that computes it, or gives each token the same logit, does not have each token of a prompt as its first choice.
    behind = (logits < own).sum(dim=-1)
    equal = logits == own
    equal &= torch.arange(logits.shape[-1], device=logits.device) >= places
    ranks = (logits.shape[-1] + 1 - behind - equal.sum(dim=-1)).tolist()
    values = torch.cat((own, values), dim=-1) - total
    rows = zip(tokens, ids.tolist(), values.tolist(), ranks, strict=True)
    return tuple(Logprobs((token, *others), tuple(row), rank) for token, others, row, rank in rows)


def _logprobs_of_rows(
    logits: torch.Tensor, tokens: list[int], params: Rows[SamplingParams], masks: TokenMasks | None
) -> dict[int, Logprobs]:
    """By row, for rows that request log probabilities. Rows with equally many alternatives are computed together."""
    logprobs: dict[int, Logprobs] = {}
    # A row without a token has -1 here; its log probabilities are not used.
    tokens = [max(0, token) for token in tokens]
    for count in {p.logprobs for p in params} - {-1}:
        rows = [row for row, p in enumerate(params) if p.logprobs == count]
        chosen = logits if len(rows) == len(logits) else logits[rows]
        logprobs |= zip(rows, log_probabilities(chosen, [tokens[row] for row in rows], count), strict=True)
    if masks:
        for row in [row for row in masks.rows if params[row].logprobs_of_allowed]:
            allowed = torch.from_numpy(masks.allowed(row, logits.shape[-1]))
            logprobs[row] = _allowed_alternatives(logits[row], tokens[row], params[row].logprobs, allowed)
    return logprobs


def _allowed_alternatives(row: torch.Tensor, token: int, count: int, allowed: torch.Tensor) -> Logprobs:
    """Like `log_probabilities` of one row, but only token IDs in `allowed` are alternatives.

    The probabilities are the model's own, before any rule.
    """
    (own,) = log_probabilities(row[None], [token], 0)
    ids = allowed.to(row.device)
    values, best = row[ids].topk(min(count, len(ids)))
    values = values - row.logsumexp(dim=-1)
    return Logprobs((token, *ids[best].tolist()), (own.values[0], *values.tolist()), own.rank)


def prompt_logprobs(logits: torch.Tensor, scheduled: ScheduledSequence) -> tuple[Logprobs, ...]:
    """Log probabilities of the prompt tokens that follow `scheduled.prompt_logprob_positions`.

    `logits`: one row for each of these positions, in order.
    """
    rows = scheduled.prompt_logprob_positions
    following = list(scheduled.sequence.request.prompt[rows.start + 1 : rows.stop + 1])
    return log_probabilities(logits, following, params_of(scheduled.sequence).prompt_logprobs)
