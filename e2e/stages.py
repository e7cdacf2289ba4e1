"""What a long run showed: stages with their seconds, what was seen in them, every request of its clients."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from testkit.load.closed import Failure, Report
from testkit.load.flow import Ended
from testkit.report import Bar, Json, report, write


class Stages:
    """The stages of one run, for build/reports/NAME.json."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = 0
        self._rows: list[Json] = []
        self._sent = self._lost = 0
        self._failed: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[Json]:
        """One stage, printed when it has ended well, with what was put into its row."""
        self._begun += 1
        began = time.monotonic()
        row: Json = {"stage": name}
        yield row
        row["seconds"] = round(time.monotonic() - began, 1)
        self._rows.append(row)
        print(f"{self._name}: {row}", flush=True)

    def requests(self, ended: Sequence[Ended]) -> None:
        """Count requests that were sent at a rate."""
        self._sent += len(ended)
        self._failed += [item.trouble for item in ended if item.trouble]

    def load(self, seen: Report, lost: Sequence[Failure] = ()) -> None:
        """Count requests of a closed loop. `lost`: streams that ended with their pod, which is no failure of ours."""
        self._sent += seen.requests
        self._lost += len(lost)
        self._failed += [str(failure) for failure in seen.failures if failure not in lost]

    def write(self) -> None:
        """Write the report; fails when a request failed or a stage did not end well."""
        ended = len(self._rows)
        bars = [
            Bar("stages that ended as they should", ended, str(self._begun), 0 < ended == self._begun),
            Bar("failed requests", len(self._failed), "0", not self._failed),
        ]
        counted = {"requests": self._sent, "streams_lost_with_their_pod": self._lost}
        made = report(self._name, self._rows, bars, **counted)
        print(f"{self._name}: {counted}, {len(self._failed)} failed; {write(made)}", flush=True)
        missed = [str(bar) for bar in bars if not bar.ok]
        assert not missed, (missed, self._failed[:5])
