"""All that a run measured, and what follows from it (pure)."""

import math
from dataclasses import dataclass, field

from bench.engine.ceilings import Ceilings
from bench.engine.figures import Objective, Row, middle, ratio
from bench.engine.machine import BUSY_SHARE
from bench.engine.peers import QUANTIZATION_OF
from bench.engine.shapes import Shape, ceiling_tokens_per_s, decode_roofline_tokens_per_s
from bench.engine.workload import closed, requests_at, totals
from testkit.report import Json


@dataclass(slots=True)
class Result:
    """All that was measured. `missing`: peers that took no part, with the reason."""

    shape: Shape
    machine: Json
    ceilings: list[Ceilings] = field(default_factory=list)  # before the first round and after each
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

    def rate(self, peer: str, concurrency: int, kind: str = "closed") -> float:
        return self.value(peer, kind, "output_tokens_per_s", concurrency)

    def ratios(self, ours: str, theirs: str, concurrency: int) -> list[float]:
        """Of the rates of two peers, round by round: what drifts with time is in both of a round."""
        return self._by_round((ours, "closed"), (theirs, "closed"), concurrency)

    def sampled_ratios(self, peer: str, concurrency: int) -> list[float]:
        """Of a peer's sampled load to its greedy one, round by round."""
        return self._by_round((peer, "sampled"), (peer, "closed"), concurrency)

    def _by_round(self, above: tuple[str, str], below: tuple[str, str], concurrency: int) -> list[float]:
        rates = [
            {row["round"]: row["output_tokens_per_s"] for row in self.of(*each, concurrency)} for each in (above, below)
        ]
        return [ratio(rates[0][number], rates[1][number]) for number in sorted(rates[0].keys() & rates[1].keys())]

    def best(self, name: str) -> float:
        """The ceiling: the best one of the medians of all looks."""
        return max((float(getattr(each, name)) for each in self.ceilings), default=math.nan)

    def ceiling(self, concurrency: int, *, int8: bool) -> float:
        """Of this concurrency's very requests, in output tokens per second."""
        count = requests_at(concurrency)
        gflops = self.best("int8_gflops" if int8 else "bf16_gflops")
        return ceiling_tokens_per_s(self.shape, gflops, *totals(closed(count, "", self.shape)), count)

    def roofline(self, weight_bytes: float) -> float:
        return decode_roofline_tokens_per_s(self.shape, self.best("read_gb_per_s"), weight_bytes)

    def bandwidth_share(self, peer: str) -> float:
        """Of the memory's bandwidth, while our engine decodes one sequence: of reads before and after each step."""
        rows = self.split.get(QUANTIZATION_OF[peer], [])
        return next((float(row["bandwidth_share"]) for row in rows if "bandwidth_share" in row), math.nan)

    def disturbed(self) -> list[Row]:
        """Runs in which others, or the host, took more of the cores than figures bear."""
        return [row for row in self.rows if row.get("steal_share", 0.0) + row.get("foreign_share", 0.0) > BUSY_SHARE]

    def peak_mib(self, peer: str) -> float:
        return max((row["pss_mib"] for row in self.rows if row["peer"] == peer and "pss_mib" in row), default=math.nan)
