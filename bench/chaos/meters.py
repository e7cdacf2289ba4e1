"""What the gateways count themselves, kept beyond the death of each process."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from testkit.cluster.api import KubeError
from testkit.cluster.installation import Installation

PERIOD_S = 20.0


@dataclass(frozen=True, slots=True)
class Process:
    """One life of one gateway: its counters at the last look."""

    outcomes: Mapping[str, int]
    resumes: Mapping[str, int]
    retries: int


class Meters:
    """Looks now and then, and right before each kill."""

    def __init__(self, slipway: Installation, model: str) -> None:
        self._slipway, self._model = slipway, model
        self._lock = threading.Lock()
        self._first: dict[str, Process] = {}
        self._last: dict[str, Process] = {}

    def look(self) -> None:
        with self._lock:
            # What later lives counted, they counted in this run.
            before = not self._first
            for gateway in self._slipway.ready("gateway"):
                try:
                    life, process = self._read(gateway)
                except (KubeError, ValueError, StopIteration):
                    continue  # it is just dying; the last look holds
                self._first.setdefault(life, process if before else Process({}, {}, 0))
                self._last[life] = process

    def alive(self) -> set[str]:
        """Lives that answer now."""
        found = set()
        for gateway in self._slipway.ready("gateway"):
            found.add(self._read(gateway)[0])
        return found

    def counted(self, lives: set[str] | None = None) -> Process:
        """Over all lives, or these; what was counted before the first look is left out."""
        outcomes: Counter[str] = Counter()
        resumes: Counter[str] = Counter()
        retries = 0
        for life, last in self._last.items():
            if lives is not None and life not in lives:
                continue
            first = self._first[life]
            outcomes.update(Counter(last.outcomes) - Counter(first.outcomes))
            resumes.update(Counter(last.resumes) - Counter(first.resumes))
            retries += last.retries - first.retries
        return Process(dict(outcomes), dict(resumes), retries)

    @property
    def lives(self) -> int:
        return len(self._last)

    def _read(self, gateway: str) -> tuple[str, Process]:
        return read(gateway, self._slipway.admin_page(gateway, "metrics"), self._model)


def read(gateway: str, page: str, model: str) -> tuple[str, Process]:
    """A name for this life of the gateway, and its counters."""
    outcomes: Counter[str] = Counter()
    resumes: Counter[str] = Counter()
    retries, started = 0, ""
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "process_start_time_seconds":
                started = str(sample.value)
            if sample.labels.get("model") != model:
                continue
            if sample.name == "slipway_gateway_requests_total":
                outcomes[sample.labels["outcome"]] += int(sample.value)
            elif sample.name == "slipway_gateway_resumes_total":
                resumes[sample.labels["outcome"]] += int(sample.value)
            elif sample.name == "slipway_gateway_retries_total":
                retries += int(sample.value)
    return f"{gateway} {started}", Process(dict(outcomes), dict(resumes), retries)
