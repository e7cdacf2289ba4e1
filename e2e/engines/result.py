"""What a run with an engine showed: stages with their seconds, and every request of its clients."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from testkit.load.closed import Report
from testkit.load.flow import Ended
from testkit.report import Bar, Json, report, write


class Stages:
    """The stages of one engine, for build/reports/engines-NAME.json."""

    def __init__(self, engine: str, count: int) -> None:
        self._engine, self._count = engine, count
        self._rows: list[Json] = []
        self._sent = 0
        self._failed: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """One stage, printed when it has ended well."""
        began = time.monotonic()
        yield
        seconds = round(time.monotonic() - began, 1)
        self._rows.append({"stage": name, "seconds": seconds})
        print(f"{self._engine}: {name}: {seconds} s", flush=True)

    def requests(self, ended: Sequence[Ended]) -> None:
        """Count requests that were sent at a rate."""
        self._sent += len(ended)
        self._failed += [item.trouble for item in ended if item.trouble]

    def load(self, seen: Report) -> None:
        """Count requests of a closed loop."""
        self._sent += seen.requests
        self._failed += [str(failure) for failure in seen.failures]

    def write(self) -> None:
        """Write the report; fails when a request failed or a stage is missing."""
        bars = [
            Bar("stages that ended as they should", len(self._rows), str(self._count), len(self._rows) == self._count),
            Bar("failed requests", len(self._failed), "0", not self._failed),
        ]
        made = report(f"engines-{self._engine}", self._rows, bars, requests=self._sent)
        print(f"{self._engine}: {self._sent} requests, {len(self._failed)} failed; {write(made)}", flush=True)
        assert not self._failed, self._failed[:5]
        assert len(self._rows) == self._count
