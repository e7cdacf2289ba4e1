"""Pictures: the evidence of a review over time, and the steps of a load test against their objectives."""

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway_cli.errors import CommandError
from slipway_cli.sizing.objectives import SHARES, Objectives
from slipway_cli.sizing.steps import Step, quantile

if TYPE_CHECKING:  # numpy, which evidence needs, takes long to load
    from slipway_cli.views.evidence import Review

INCHES, DPI = (9.0, 5.0), 130
FORMS = ("svg", "png")


def draw(reviews: "list[Review]", path: Path) -> None:
    """Write a PNG with the reviews, one above the other.

    Raises:
        CommandError: when matplotlib is missing, or the file cannot be written.
    """
    figure, axes = _figure(len(reviews), "--png")
    for review, axis in zip(reviews, axes, strict=True):
        _one(axis, review)
    _save(figure, path, "png")


def form_of(path: Path) -> str:
    """svg or png, by the end of its name.

    Raises:
        CommandError: it has another end.
    """
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMS:
        raise CommandError(f"{path}: a picture ends in .svg or .png")
    return form


def check(path: Path, option: str) -> None:
    """What can be known before there is anything to draw.

    Raises:
        CommandError: another end of the name, or matplotlib is missing.
    """
    form_of(path)
    if importlib.util.find_spec("matplotlib") is None:
        raise _missing(option)


def draw_steps(steps: Sequence[Step], objectives: Objectives, title: str, path: Path) -> None:
    """Write an SVG or a PNG, by the end of its name: the percentile of each objective with its limit, and rates.

    Raises:
        CommandError: another end of the name, matplotlib is missing, or the file cannot be written.
    """
    form = form_of(path)
    ordered = sorted(steps, key=lambda step: step.concurrency)
    figure, axes = _figure(len(objectives) + 1, "--picture")
    for (name, limit_ms), axis in zip(objectives.items(), axes[:-1], strict=True):
        _percentile(axis, ordered, name, limit_ms)
    axis = axes[-1]
    numbers = [step.concurrency for step in ordered]
    axis.plot(numbers, [step.rate for step in ordered], marker="o", label="requests per second")
    axis.set_ylabel("requests per second")
    axis.set_xlabel("requests in progress")
    axis.grid(True, linewidth=0.4, alpha=0.6)
    if any(step.output_tokens for step in ordered):
        tokens = axis.twinx()
        tokens.plot(numbers, [step.tokens_per_second for step in ordered], marker="s", color="#8a6d00", linestyle=":")
        tokens.set_ylabel("output tokens per second")
    axes[0].set_title(title, fontsize=9, loc="left")
    _save(figure, path, form)


def _percentile(axis: Any, steps: Sequence[Step], objective: str, limit_ms: int) -> None:
    points = [(step.concurrency, quantile(step.times_ms(objective), SHARES[objective])) for step in steps]
    points = [(number, value) for number, value in points if not math.isnan(value)]
    if points:
        axis.plot(*zip(*points, strict=True), marker="o")
    axis.axhline(limit_ms, color="#b3261e", linewidth=1, linestyle="--")
    axis.set_ylabel(f"{objective}, ms")
    axis.set_ylim(bottom=0)
    axis.grid(True, linewidth=0.4, alpha=0.6)


def _figure(count: int, option: str) -> tuple[Any, list[Any]]:
    """A figure with `count` axes, one above the other. Raises CommandError without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise _missing(option) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (INCHES[0], INCHES[1] * count if count < 3 else INCHES[1] + 2.5 * (count - 1))
    figure, axes = pyplot.subplots(count, 1, figsize=size, layout="constrained", squeeze=False)
    return figure, [axis for [axis] in axes]


def _missing(option: str) -> CommandError:
    return CommandError(f"a picture needs matplotlib: pip install matplotlib, or leave {option} out")


def _save(figure: Any, path: Path, form: str) -> None:
    from matplotlib import pyplot

    try:
        figure.savefig(path, dpi=DPI, format=form)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        pyplot.close(figure)


def _one(axis: Any, review: "Review") -> None:
    from slipway_cli.views.evidence import ALL, format_legend

    low, high = review.span
    # Often one metric has all the evidence: the thick line of the sum stays visible behind it.
    axis.step(*zip(*review.points, strict=True), where="post", linewidth=5, color="#c8c8c8", label=ALL)
    for item in review.metrics:
        if item.points:
            axis.step(
                *zip(*item.points, strict=True), where="post", linewidth=1.3, marker=".", label=format_legend(item)
            )
    axis.axhline(review.log10_threshold, color="#b3261e", linewidth=1, linestyle="--")
    axis.annotate(f"{review.threshold} rejects", (0, review.log10_threshold), xytext=(4, 3),
                  textcoords="offset points", fontsize=8, color="#b3261e")  # fmt: skip
    axis.set(xlim=(0, review.seconds), ylim=(low - 0.2, high + 0.2))
    axis.set_xlabel("seconds since the analysis began")
    axis.set_ylabel("evidence that canary is worse, as a power of ten")
    axis.set_title(f"{review.title}\n{review.outcome} ({review.reason})", fontsize=9, loc="left")
    axis.grid(True, which="major", linewidth=0.4, alpha=0.6)
    axis.legend(fontsize=7, loc="upper left")
