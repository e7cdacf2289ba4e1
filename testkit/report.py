"""The report of a run: bars that hold or do not, rows with the numbers behind them, build/reports/<name>.json."""

import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testkit import ROOT

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise, and whether it held."""

    bar: str
    value: float | int | bool
    limit: str
    ok: bool

    def __str__(self) -> str:
        return f"{'ok  ' if self.ok else 'MISS'} {self.bar}: {self.value} ({self.limit})"


def report(name: str, rows: Sequence[Json], bars: Iterable[Bar], **more: Any) -> Json:
    """The shape of every report; `more` stands between the machine and the rows."""
    about = {"name": name, "commit": commit(), "machine": machine()}
    return {**about, **more, "rows": list(rows), "bars": [asdict(bar) for bar in bars]}


def write(made: Json, root: Path = ROOT) -> Path:
    """Put a report into build/reports, whole or not at all; returns the file."""
    target = root / "build" / "reports" / f"{made['name']}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_suffix(".tmp")
    half.write_text(json.dumps(made, indent=1) + "\n")
    half.replace(target)
    return target


def quantile(values: Iterable[float], share: float, none: float = math.nan) -> float:
    """Nearest rank: the least value that at least `share` of all do not exceed; `none` when there is no value."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else none


def machine() -> Json:
    """Cores that this process may use, the CPU's name, memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": len(os.sched_getaffinity(0)), "cpu": _cpu(), "memory_gib": round(memory / 2**30, 1)}


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit(root: Path = ROOT) -> str:
    """The commit of the tree, with `-dirty` when files differ from it."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
