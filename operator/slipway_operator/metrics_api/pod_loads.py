"""What the pods of a revision did in the last seconds, from their readings; pure."""

from collections.abc import Sequence
from itertools import pairwise

from slipway_operator.metrics_api.exposition import Buckets, ExposedSample
from slipway_operator.metrics_api.series import Reading, counter_growth
from slipway_operator.scaling_model.capacity_model import PodLoad


def load_of(readings: Sequence[Reading], ttft_limit_s: float | None) -> PodLoad:
    """Return the load of one pod between its first and its last reading, which are at different times.

    `ttft_limit_s`: the longest time to the first token; None: no share of misses is computed.
    """
    seconds = readings[-1][0] - readings[0][0]
    samples = [sample for _, sample in readings]
    firsts = _growth(samples[0].ttft, samples[-1].ttft)
    requests = firsts[-1][1] if firsts else 0.0
    missed = None
    if firsts and requests > 0 and ttft_limit_s is not None:
        missed = 1.0 - _share_up_to(ttft_limit_s, firsts)
    return PodLoad(
        running=sum(sample.running or 0.0 for sample in samples) / len(samples),
        waiting=samples[-1].waiting or 0.0,
        generated=_rate(samples, "tokens", seconds),
        prompts=_rate(samples, "prompt_tokens", seconds),
        requests=requests / seconds,
        missed=missed,
    )


def _rate(samples: Sequence[ExposedSample], counter: str, seconds: float) -> float | None:
    """Return the growth of a counter per second; None where the engine does not export it."""
    values = [getattr(sample, counter) for sample in samples]
    if any(value is None for value in values):
        return None
    return sum(counter_growth(before, after) for before, after in pairwise(values)) / seconds


def _growth(before: Buckets | None, after: Buckets | None) -> list[tuple[float, float]]:
    """Return the growth of a cumulative histogram; of a process that began again, all of it."""
    former = dict(before or ())
    began_again = any(count < former.get(bound, 0.0) for bound, count in after or ())
    return [(bound, count - (0.0 if began_again else former.get(bound, 0.0))) for bound, count in after or ()]


def _share_up_to(limit: float, cumulative: Sequence[tuple[float, float]]) -> float:
    """Return the share of values up to a limit: linear within a bucket, as quantiles are."""
    total, lower, below = cumulative[-1][1], 0.0, 0.0
    for bound, count in cumulative:
        if limit <= bound:
            part = (limit - lower) / (bound - lower) if bound < float("inf") and bound > lower else 0.0
            return (below + part * (count - below)) / total
        lower, below = bound, count
    return 1.0
