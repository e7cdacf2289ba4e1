"""A review as a PNG: the evidence over time, for each metric and for all together, against the threshold."""

from pathlib import Path
from typing import Any

from slipway_cli.errors import CommandError
from slipway_cli.views.evidence import ALL, Review, format_legend

INCHES, DPI = (9.0, 5.0), 130


def draw(reviews: list[Review], path: Path) -> None:
    """Write a PNG with the reviews, one above the other.

    Raises:
        CommandError: when matplotlib is missing, or the file cannot be written.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise CommandError("a picture needs matplotlib: pip install matplotlib, or leave --png out") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (INCHES[0], INCHES[1] * len(reviews))
    figure, axes = pyplot.subplots(len(reviews), 1, figsize=size, layout="constrained", squeeze=False)
    for review, [axis] in zip(reviews, axes, strict=True):
        _one(axis, review)
    try:
        figure.savefig(path, dpi=DPI, format="png")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        pyplot.close(figure)


def _one(axis: Any, review: Review) -> None:
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
