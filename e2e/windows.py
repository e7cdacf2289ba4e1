"""Windows by turns, alone and beside a stranger: the requests of each kind, their row of a report, and its bars."""

import math
import os
import time
from collections.abc import Iterable, Sequence

from testkit.cluster.deployment import Json
from testkit.load.flow import Ended
from testkit.report import Bar, quantile

ROUNDS, WINDOW_S = 1 if os.environ.get("QUICK") else 6, 10.0
BEFORE = 20  # requests that are answered before anything is measured
MOST_RATIO = 1.2
ALONE, BESIDE = "alone", "beside the stranger"
Window = tuple[float, float]
# Of the node, for each pod of a victim. Pods that ask for nothing get what is left by all others, the stranger's too.
SHARE: Json = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "share"},
    "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "200m"}}]},
}


def by_turns() -> dict[str, list[Window]]:
    """Windows from a moment after now on, of both kinds."""
    began = time.time() + 5
    marks = [(began + number * WINDOW_S, began + (number + 1) * WINDOW_S) for number in range(2 * ROUNDS)]
    return {ALONE: marks[::2], BESIDE: marks[1::2]}


def within(ended: Iterable[Ended], windows: Sequence[Window]) -> list[Ended]:
    """The requests that were sent in one of them."""
    return [item for item in ended if any(begins <= item.at < ends for begins, ends in windows)]


def row(kind: str, ended: Sequence[Ended]) -> Json:
    """Of one kind of windows."""
    good = sorted(item.seconds for item in ended if not item.trouble)
    quantiles = {f"p{int(q * 100)}_s": round(quantile(good, q, math.inf), 4) for q in (0.5, 0.9, 0.99)}
    return {"windows": kind, "requests": len(ended), "success": len(good) / max(1, len(ended)), **quantiles}


def comparison(alone: Json, beside: Json, rate: float) -> list[Bar]:
    """Bars of two rows: enough requests at this rate, as many of them answered, and as fast."""
    sent, least = min(alone["requests"], beside["requests"]), int(ROUNDS * WINDOW_S * rate * 0.9)
    return [
        bar("requests in each kind of window", sent, f">= {least}", sent >= least),
        bar("success rate, beside / alone", beside["success"] / alone["success"], f">= {1 / MOST_RATIO:.3f}",
            beside["success"] * MOST_RATIO >= alone["success"]),
        bar("p99, beside / alone", beside["p99_s"] / alone["p99_s"], f"<= {MOST_RATIO}",
            beside["p99_s"] <= MOST_RATIO * alone["p99_s"]),
    ]  # fmt: skip


def bar(name: str, value: float, limit: str, ok: bool) -> Bar:
    return Bar(name, round(value, 4), limit, ok)


def none(name: str, count: int) -> Bar:
    return bar(name, count, "0", count == 0)


def table(report: Json) -> str:
    lines = [str(one) for one in report["rows"]]
    return "\n".join(
        [*lines, *(f"{one['bar']}: {one['value']} ({one['limit']}) {one['ok']}" for one in report["bars"])]
    )
