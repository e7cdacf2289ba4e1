"""What autoscalers of the release's own processes follow: the load of gateways and of jobs processes; pure.

Only processes that are ready count: one that drains takes nothing new, and what it still has is no demand for others.
A text in place of a load is why a ready process reports none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipway_operator.metrics_api.series import PROBLEM_LIMIT, Unknown
from slipway_operator.model.text import printable

GATEWAY_IN_FLIGHT, JOBS_LINES = "slipway_gateway_in_flight", "slipway_jobs_lines"
OF_RELEASE = (GATEWAY_IN_FLIGHT, JOBS_LINES)


@dataclass(frozen=True, slots=True)
class JobsLoad:
    """Lines of one jobs process. `short`: all lines of the database that wait while it lacks places for them."""

    in_flight: float
    short: float


def gateways_in_flight(loads: Sequence[float | str]) -> float:
    """Return the requests in flight at all gateways; each silent one counts as the mean of the others.

    Raises:
        Unknown: when fewer than half of them report it.
    """
    return _total([load for load in loads if not isinstance(load, str)], _silent(loads), "gateways")


def lines_of_jobs(loads: Sequence[JobsLoad | str]) -> float:
    """Return the lines in flight, and those that wait for a place.

    All processes count the lines of one database, so those that wait are counted once.

    Raises:
        Unknown: when fewer than half of the processes report them.
    """
    known = [load for load in loads if isinstance(load, JobsLoad)]
    in_flight = _total([load.in_flight for load in known], _silent(loads), "jobs processes")
    return in_flight + max(load.short for load in known)


def _silent(loads: Sequence[object]) -> list[str]:
    return [load for load in loads if isinstance(load, str)]


def _total(known: Sequence[float], silent: Sequence[str], name: str) -> float:
    every = len(known) + len(silent)
    if not every:
        raise Unknown(f"none of the {name} is ready")
    if len(known) < max(1, len(silent)):
        raise Unknown(f"{len(known)} of {every} {name} have fresh numbers; {printable(silent[0])[:PROBLEM_LIMIT]}")
    return sum(known) / len(known) * every
