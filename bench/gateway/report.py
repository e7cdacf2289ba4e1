"""From blocks of load: rows, and from rows the bars of build/reports/gateway.json (pure)."""

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from bench.gateway.load import Answered
from testkit.report import Bar, quantile

Json = dict[str, Any]
# The gateway's lanes by peer: without keys, and with keys, limits and a ledger.
KEYED = {"slipway": "keys", "plane": "plane-keys"}
PYTHON, COMPILED = KEYED
SERVER = "server"  # of classic models
STREAMS = 2000

# What the Python lane holds, also where a compiled one is beside it.
LITELLM_TIMES = 30.0
PYTHON_ADDED_MS, PYTHON_KIB = {"p50": 1.0, "p99": 5.0}, 64.0
# What the compiled lane has to hold.
NGINX_TIMES, NGINX_TIMES_KEYED, NGINX_TIMES_TLS = 0.7, 0.5, 0.5
PEER_TIMES = {"sglang-router": 4.0, "aiohttp": 1.0}
KEYS_US, REDIS_US, GRPC_US = 15.0, 60.0, 80.0
REDIS = "plane-redis"  # the compiled lane with keys, and limits at Redis
ROUTED, NGINX_TIMES_ROUTED = "plane-routed", 0.6  # with rules of a ModelRoute, prefix affinity and a cache
EVENT_TIMES, ON_TIME = 1.3, 0.1
ADDED_P50_MS, ADDED_P99_MS = 0.3, 0.5
BUSY_TIMES, KIB_EACH = 1.5, 36.0
PREDICT_TIMES, PREDICT_CPU = 3.0, 1 / 8
# Of both lanes: CPU time of a request where 1 % are recorded, times that without traces.
TRACED_TIMES = 1.02


# -- rows


def cost_row(kind: str, peer: str, blocks: Sequence[Answered], **more: object) -> Json:
    """CPU time of one request, call or event in microseconds: the median over rounds, the extremes, and all rounds."""
    rounds = [block.us for block in blocks]
    per_s = [block.count / block.wall_s for block in blocks]
    return {
        "kind": kind, "peer": peer, **more, "us": statistics.median(rounds), "least": min(rounds), "most": max(rounds),
        "rounds": rounds, "per_s": statistics.median(per_s), "per_s_rounds": per_s,
        "core_share": statistics.median(block.cpu_s / block.wall_s for block in blocks),
        "failed": sum(block.failed for block in blocks),
    }  # fmt: skip


def latency_row(peer: str, blocks: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Json:
    """`blocks`: seconds of routed and of direct requests, by round; what is added is the median over rounds."""
    row: Json = {"kind": "latency", "peer": peer, "failed": sum(list(routed).count(math.inf) for routed, _ in blocks)}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        pairs = [(quantile(routed, share) * 1e3, quantile(direct, share) * 1e3) for routed, direct in blocks]
        row[f"direct_{name}_ms"] = statistics.median(direct for _, direct in pairs)
        row[f"routed_{name}_ms"] = statistics.median(routed for routed, _ in pairs)
        row[f"added_{name}_rounds_ms"] = [routed - direct for routed, direct in pairs]
        row[f"added_{name}_ms"] = statistics.median(row[f"added_{name}_rounds_ms"])
    return row


def busy_row(peer: str, pairs: Sequence[tuple[float, float]], tables: int) -> Json:
    """`pairs`: p99 in seconds beside an idle and beside a busy control side, by round. `tables`: that it parsed."""
    return {
        "kind": "busy", "peer": peer, "tables": tables, "rounds_ms": [[idle * 1e3, busy * 1e3] for idle, busy in pairs],
        "idle_p99_ms": statistics.median(idle for idle, _ in pairs) * 1e3,
        "busy_p99_ms": statistics.median(busy for _, busy in pairs) * 1e3,
        "times": ratio([busy for _, busy in pairs], [idle for idle, _ in pairs]),
    }  # fmt: skip


# -- figures of two peers


def ratio(above: Sequence[float] | None, below: Sequence[float] | None) -> float | None:
    """The median of the ratios within rounds: what disturbs one of the two disturbs the other.

    None: one of the two was not measured.
    """
    return _compare(lambda a, b: a / b if b else math.nan, above, below)


def difference(more: Sequence[float] | None, less: Sequence[float] | None) -> float | None:
    """The median of the differences within rounds; None: one of the two was not measured."""
    return _compare(lambda a, b: a - b, more, less)


def _compare(
    figure: Callable[[float, float], float], first: Sequence[float] | None, second: Sequence[float] | None
) -> float | None:
    if not first or not second:
        return None
    return statistics.median(figure(a, b) for a, b in zip(first, second, strict=True))


class Rows:
    """Rows by kind and peer. `lane`: the peer that the bars are about, the compiled lane where it was measured."""

    def __init__(self, rows: Sequence[Json]) -> None:
        self._rows = rows
        self.lane = COMPILED if any(row["peer"] == COMPILED for row in rows) else PYTHON

    def get(self, kind: str, peer: str, **more: object) -> Json | None:
        wanted = {"kind": kind, "peer": peer, **more}
        return next((row for row in self._rows if wanted.items() <= row.items()), None)

    def figure(self, kind: str, peer: str, name: str) -> float | None:
        """None: it was not measured."""
        row = self.get(kind, peer)
        return None if row is None else float(row[name])

    def values(self, kind: str, peer: str, name: str = "rounds", **more: object) -> list[float] | None:
        """One figure of each round; None: it was not measured."""
        row = self.get(kind, peer, **more)
        return None if row is None else list(row[name])


# -- bars


def bars(rows: Sequence[Json], streams: int = STREAMS, not_measured: Collection[str] = ()) -> list[Bar]:
    """One for each promise that the rows have a measure of. `not_measured`: names of peers, and of what else failed."""
    missing = sorted(_lost(rows, not_measured))
    started = Bar("programs of our own that did not start", len(missing), "<= 0", not missing)
    return [started, *lasting_bars(rows, streams), *compiled_bars(rows)]


def _lost(rows: Sequence[Json], not_measured: Collection[str]) -> set[str]:
    """Without these, their bars would be left out, and the run would pass.

    A machine may have no compiled lane. One that was there in some part and not in another one has failed.
    """
    seen = {row["peer"] for row in rows}
    compiled = {COMPILED, KEYED[COMPILED], REDIS, ROUTED} & seen
    return {PYTHON, KEYED[PYTHON], SERVER, *compiled} & set(not_measured)


def lasting_bars(rows: Sequence[Json], streams: int = STREAMS) -> list[Bar]:
    """What holds with the Python lane already: its latency and memory, whole streams, no failed request."""
    of, made = Rows(rows), []
    litellm = ratio(of.values("throughput", "litellm"), of.values("throughput", PYTHON))
    made.append(_at_least("Python lane: requests per CPU-second, times those of litellm", litellm, LITELLM_TIMES))
    for name, limit_ms in PYTHON_ADDED_MS.items():
        value = of.figure("latency", PYTHON, f"added_{name}_ms")
        made.append(_at_most(f"Python lane: added latency {name}, ms", value, limit_ms))
    made += _trace_bars(of)
    kib = of.figure("streams", PYTHON, "kib_each")
    made.append(_at_most("Python lane: memory of a stream, KiB", kib, PYTHON_KIB))
    if row := of.get("streams", of.lane):
        whole = row["open"] >= streams and not row["broken"]
        made.append(Bar("streams open at once, none broken", row["open"], f">= {streams}", whole))
    ours = {*KEYED, *KEYED.values(), REDIS, ROUTED, SERVER}
    failed = sum(row.get("failed", 0) + row.get("broken", 0) for row in rows if row["peer"] in ours)
    return [*filter(None, made), Bar("requests that failed", failed, "<= 0", not failed)]


def compiled_bars(rows: Sequence[Json]) -> list[Bar]:
    """What the compiled lane is for. Where it was not measured, they have the figures of the Python lane."""
    of = Rows(rows)
    lane, keyed = of.lane, KEYED[of.lane]
    plain_us, keyed_us = of.values("throughput", lane), of.values("throughput", keyed)
    nginx_us = of.values("throughput", "nginx")
    made = [
        _at_least("requests per CPU-second, times those of nginx", ratio(nginx_us, plain_us), NGINX_TIMES),
        _at_least("requests per CPU-second with keys, limits and ledger, times those of nginx",
                  ratio(nginx_us, keyed_us), NGINX_TIMES_KEYED),
        _at_least("requests per CPU-second with ten rules, prefix affinity and a cache, times those of nginx",
                  ratio(nginx_us, of.values("throughput", ROUTED)), NGINX_TIMES_ROUTED),
        _at_most("CPU time that keys, limits and the ledger add to a request, µs",
                 difference(keyed_us, plain_us), KEYS_US),
        _at_most("CPU time that keys, limits at Redis and the ledger add to a request, µs",
                 difference(of.values("throughput", REDIS), plain_us), REDIS_US),
    ]  # fmt: skip
    for peer, least in PEER_TIMES.items():
        times = ratio(of.values("throughput", peer), plain_us)
        made.append(_at_least(f"requests per CPU-second, times those of {peer}", times, least))
    made += [*_event_bars(of, rows), *_latency_bars(of)]
    if row := of.get("busy", lane):
        # Without a table that was parsed the control side was not busy.
        times = row["times"] if row["tables"] else math.nan
        made.append(_at_most("p99 beside a busy control side, times that beside an idle one", times, BUSY_TIMES))
    made.append(_at_most("memory of a stream, KiB", of.figure("streams", lane, "kib_each"), KIB_EACH))
    tls = ratio(of.values("tls", "nginx"), of.values("tls", lane))
    made.append(_at_least("requests per CPU-second with TLS, times those of nginx with TLS", tls, NGINX_TIMES_TLS))
    made.append(_at_most("CPU time of a gRPC call, µs", of.figure("grpc", lane, "us"), GRPC_US))
    return [*filter(None, made), *_predict_bars(of)]


def _event_bars(of: Rows, rows: Sequence[Json]) -> list[Bar | None]:
    counts = sorted({row["streams"] for row in rows if row["kind"] == "events"})
    made: list[Bar | None] = []
    for count in counts:
        nginx_us = of.values("events", "nginx", streams=count)
        for peer, title in ((of.lane, ""), (KEYED[of.lane], " with keys, limits and ledger")):
            bar = _at_most(
                f"CPU time of an event of {count} streams{title}, times that of nginx",
                ratio(of.values("events", peer, streams=count), nginx_us),
                EVENT_TIMES,
            )
            row = of.get("events", peer, streams=count)
            made.append(bar and replace(bar, ok=bar.ok and row is not None and is_on_time(row)))
    return made


def traced_times(of: Rows, lane: str, share: str) -> float | None:
    """CPU time of a request where a share is recorded, times that without traces; None: it was not measured."""
    return ratio(of.values("traces", lane, share=share), of.values("traces", lane, share="off"))


def _trace_bars(of: Rows) -> list[Bar | None]:
    made: list[Bar | None] = []
    for lane, title in ((PYTHON, "Python lane"), (COMPILED, "compiled lane")):
        bar = _at_most(
            f"{title}: CPU time of a request with traces of 1 %, times that without",
            traced_times(of, lane, "1%"),
            TRACED_TIMES,
        )
        row = of.get("traces", lane, share="1%")
        # Where no span came, nothing was recorded.
        made.append(bar and replace(bar, ok=bar.ok and row is not None and row["spans"] > 0))
    return made


def is_on_time(row: Json) -> bool:
    """Whether events came at their rate. A peer that is late has several of them in one read, so each costs less."""
    return bool(abs(row["per_s"] / row["intended_per_s"] - 1) <= ON_TIME)


def _latency_bars(of: Rows) -> list[Bar | None]:
    p50_ms = of.figure("latency", of.lane, "added_p50_ms")
    p99_ms = [of.values("latency", peer, "added_p99_rounds_ms") for peer in (of.lane, "nginx")]
    return [
        _at_most("added latency p50, ms", p50_ms, ADDED_P50_MS),
        _at_most("added latency p99 beyond that of nginx, ms", difference(*p99_ms), ADDED_P99_MS),
    ]


def _predict_bars(of: Rows) -> list[Bar]:
    """Of the compiled lane beside the Python lane: where there is none, they are of the Python lane beside itself."""
    per_s = [of.values("predict", peer, "per_s_rounds") for peer in (of.lane, PYTHON)]
    us = [of.values("predict", peer) for peer in (of.lane, PYTHON)]
    return [
        bar
        for bar in (
            _at_least("predictions per second on one core, times those of the Python lane",
                      ratio(*per_s), PREDICT_TIMES),
            _at_most("the gateway's CPU time of a prediction, times that of the Python lane",
                     ratio(*us), PREDICT_CPU),
        ) if bar
    ]  # fmt: skip


def awaited(rows: Sequence[Json]) -> frozenset[str]:
    """Bars that do not count yet: those of the compiled lane, where it was not measured."""
    return frozenset() if Rows(rows).lane == COMPILED else frozenset(bar.bar for bar in compiled_bars(rows))


def _at_least(name: str, value: float | None, least: float) -> Bar | None:
    return None if value is None else Bar(name, _rounded(value), f">= {least:g}", value >= least)


def _at_most(name: str, value: float | None, most: float) -> Bar | None:
    return None if value is None else Bar(name, _rounded(value), f"<= {most:g}", value <= most)


def _rounded(value: float) -> float:
    """To what a person reads; the verdict is of the whole figure."""
    return round(value, 3)
