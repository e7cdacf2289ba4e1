"""The report of `slipway bench --save`, which `slipway size --from` reads: JSON, described once for both; pure."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from slipway_cli.sizing.objectives import SHARES, Objectives
from slipway_cli.sizing.steps import Step

LARGEST_BYTES = 64 << 20
MOST_STEPS = 64

_Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
_Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
_Times = Annotated[tuple[_Amount, ...], msgspec.Meta(max_length=1_000_000)]
# Printed on terminals, so without control characters. \Z, because $ also matches before a line break at the end.
_Text = Annotated[str, msgspec.Meta(max_length=512, pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z")]


class SavedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A step with every time that it measured, in milliseconds."""

    concurrency: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    seconds: _Amount
    mean_ms: _Amount
    ttft_ms: _Times = ()
    itl_ms: _Times = ()
    latency_ms: _Times = ()
    prompt_tokens: _Count = 0
    output_tokens: _Count = 0
    errors: Annotated[dict[_Text, _Count], msgspec.Meta(max_length=64)] = {}
    whole: bool = True


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A load test. `pods`: how many served. `tokens`: whether servers counted them, or words were taken for them."""

    version: Literal[1]
    model: _Text
    at: _Text
    pods: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    objectives: dict[_Text, Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]]
    max_error_share: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    kind: Literal["chat", "predict"]
    prompt_tokens: _Text
    output_tokens: _Text
    tokens: Literal["counted", "estimated", "none"]
    ended: _Text
    steps: Annotated[tuple[SavedStep, ...], msgspec.Meta(max_length=MOST_STEPS)]
    notes: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=16)] = ()


def saved(step: Step) -> SavedStep:
    """A step as the report has it: times in hundredths of a millisecond, rounded up, so none comes within a limit."""
    return SavedStep(
        step.concurrency,
        round(step.seconds, 3),
        round(step.mean_ms, 3),
        _rounded(step.ttft_ms),
        _rounded(step.itl_ms),
        _rounded(step.latency_ms),
        step.prompt_tokens,
        step.output_tokens,
        dict(step.errors or {}),
        step.whole,
    )


def step_of(step: SavedStep) -> Step:
    """The step of a report."""
    return Step(
        step.concurrency,
        step.seconds,
        step.mean_ms,
        tuple(sorted(step.ttft_ms)),
        tuple(sorted(step.itl_ms)),
        tuple(sorted(step.latency_ms)),
        step.prompt_tokens,
        step.output_tokens,
        step.errors,
        step.whole,
    )


def read(text: bytes) -> Report:
    """Read a report.

    Raises:
        ValueError: it is none, with the path of the field that is wrong.
    """
    if len(text) > LARGEST_BYTES:
        raise ValueError(f"the report has more than {LARGEST_BYTES} bytes")
    try:
        report = msgspec.json.decode(text, type=Report)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is no report of slipway bench --save: {error}") from error
    if unknown := sorted(report.objectives.keys() - SHARES.keys()):
        raise ValueError(f"objectives: {unknown[0]!r} is none of {', '.join(SHARES)}")
    numbers = [step.concurrency for step in report.steps]
    if len(set(numbers)) < len(numbers):
        raise ValueError("steps: two have the same concurrency")
    return report


def write(report: Report) -> bytes:
    """The bytes of a report, which `read` reads."""
    return msgspec.json.encode(report)


def objectives_of(report: Report) -> Objectives:
    """Its objectives in the order of SHARES."""
    return {name: report.objectives[name] for name in SHARES if name in report.objectives}


def steps_of(report: Report) -> list[Step]:
    """Its steps."""
    return [step_of(step) for step in report.steps]


def data_of(report: Report) -> dict[str, Any]:
    """The report without its times, for people's programs."""
    data: dict[str, Any] = msgspec.to_builtins(report)
    return data | {"steps": [{k: v for k, v in step.items() if k not in _TIMES} for step in data["steps"]]}


_TIMES = ("ttftMs", "itlMs", "latencyMs")


def _rounded(times: Sequence[float]) -> tuple[float, ...]:
    return tuple(math.ceil(time * 100) / 100 for time in times)
