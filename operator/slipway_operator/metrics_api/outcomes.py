"""How many requests met and missed the objectives of spec.slo in the last minute, from counters of gateways; pure."""

from collections import deque
from collections.abc import Mapping, Sequence

from slipway_contracts.service_levels import Counted
from slipway_operator.planning.facts import process_counts


class OutcomeCounts:
    """Sums over all gateway processes. A process that is seen for the first time adds nothing: its counts are old."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._processes: dict[str, dict[str, process_counts.Tally]] = {}
        self._sums: dict[str, Counted] = {}
        self._past: deque[tuple[float, dict[str, Counted]]] = deque()

    def add(self, reported: Mapping[str, Mapping[str, Counted]], names: Sequence[str], now: float) -> None:
        """Store the counters of each process, by its name; only those in `names` count."""
        sums = dict(self._sums)
        present = process_counts.fitting(reported, self._processes)
        for process, counts in present.items():
            if process not in self._processes:
                continue
            for name, more in process_counts.growth(counts, self._processes[process], names):
                total, missed = sums.get(name, (0, 0))
                sums[name] = (total + more[0], missed + more[1])
        self._processes = {process: dict(counts) for process, counts in present.items()}
        self._sums = {name: counts for name, counts in sums.items() if name in names}
        self._past.append((now, self._sums))
        while now - self._past[0][0] > self._kept_s:
            self._past.popleft()

    def within(self, seconds: float, now: float) -> tuple[float, dict[str, Counted]]:
        """Return the seconds that are counted, at most so many, and the growth in them; 0 seconds: nothing is known."""
        past = [(at, sums) for at, sums in self._past if now - at <= seconds]
        if len(past) < 2:
            return 0.0, {}
        (first, before), (last, after) = past[0], past[-1]
        return last - first, {name: _less(counts, before.get(name, (0, 0))) for name, counts in after.items()}


def _less(counts: Counted, before: Counted) -> Counted:
    return counts[0] - before[0], counts[1] - before[1]
