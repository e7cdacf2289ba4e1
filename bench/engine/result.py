"""All that a run measured, and what follows from it (pure)."""

import math
from dataclasses import dataclass, field

from bench.engine.ceilings import Ceilings
from bench.engine.figures import Objective, Row, middle
from bench.engine.machine import BUSY_SHARE
from bench.engine.shapes import Shape, ceiling_tokens_per_s, decode_roofline_tokens_per_s
from bench.engine.workload import closed, requests_at, totals
from testkit.report import Json


@dataclass(slots=True)
class Result:
    """All that was measured. `missing`: peers that took no part, with the reason."""

    shape: Shape
    machine: Json
    ceilings: list[Ceilings] = field(default_factory=list)  # before and after
    concurrencies: tuple[int, ...] = (1, 8, 32)
    objective: Objective = field(default_factory=Objective)
    peers: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    rows: list[Row] = field(default_factory=list)
    split: dict[str, list[Row]] = field(default_factory=dict)  # by quantization
    warnings: list[str] = field(default_factory=list)

    def of(self, peer: str, kind: str, concurrency: int = 0) -> list[Row]:
        """A peer's rows of a kind, one for each round that it took part in."""
        return [
            row
            for row in self.rows
            if (row["peer"], row["kind"]) == (peer, kind) and row.get("concurrency", 0) == concurrency
        ]

    def value(self, peer: str, kind: str, name: str, concurrency: int = 0) -> float:
        """Median over the rounds; nan when there is none."""
        return middle([row[name] for row in self.of(peer, kind, concurrency) if not math.isnan(row[name])])

    def rate(self, peer: str, concurrency: int) -> float:
        return self.value(peer, "closed", "output_tokens_per_s", concurrency)

    def best(self, name: str) -> float:
        """The ceiling: the better one of the medians before and after."""
        return max((float(getattr(each, name)) for each in self.ceilings), default=math.nan)

    def ceiling(self, concurrency: int, *, int8: bool) -> float:
        """Of this concurrency's very requests, in output tokens per second."""
        count = requests_at(concurrency)
        gflops = self.best("int8_gflops" if int8 else "bf16_gflops")
        return ceiling_tokens_per_s(self.shape, gflops, *totals(closed(count, "")), count)

    def roofline(self, weight_bytes: float) -> float:
        return decode_roofline_tokens_per_s(self.shape, self.best("read_gb_per_s"), weight_bytes)

    def decode_rate(self, peer: str) -> float:
        """Tokens per second of one sequence once its prompt is in."""
        return 1e3 / self.value(peer, "closed", "itl_p50_ms", 1)

    def disturbed(self) -> list[Row]:
        """Runs in which others, or the host, took more of the cores than figures bear."""
        return [row for row in self.rows if row.get("steal_share", 0.0) + row.get("foreign_share", 0.0) > BUSY_SHARE]

    def peak_mib(self, peer: str) -> float:
        return max((row["pss_mib"] for row in self.rows if row["peer"] == peer and "pss_mib" in row), default=math.nan)
