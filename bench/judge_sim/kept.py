"""Cells that are done, one JSON file each: a simulation that was interrupted goes on where it was.

A folder holds what one state of the code found. Results of other states stay until there are too many of them.
"""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import slipway_operator
from bench.judge_sim.cells import Alternative, Null
from bench.judge_sim.running import AlternativeResult, Detection, NullResult, Progress, alternative_result, null_result
from slipway_operator.planning.analysis.runs import READ_S

STATES = 8
# What only shows results has no part in them.
DECIDING = ("cells", "intervals", "kayenta", "latencies", "ours", "peers", "running", "traffic")


def state_of_code() -> str:
    """Changes with anything that results depend on: the judge, the simulation, and what draws its numbers."""
    here, operator = Path(__file__).parent, Path(slipway_operator.__file__).parent
    sources = [here / f"{name}.py" for name in DECIDING]
    sources += [*sorted((operator / "judging").glob("*.py")), *sorted((operator / "model" / "analysis").glob("*.py"))]
    found = hashlib.sha256(f"numpy {np.__version__}, read every {READ_S} s".encode())
    for source in sources:
        found.update(source.read_bytes())
    return found.hexdigest()[:12]


def file_name(cell: str, seed: int, runs: int) -> str:
    words = "".join(letter if letter.isalnum() else "-" for letter in cell)
    return f"{words}.seed-{seed}.runs-{runs}.json"


class Kept:
    """Results of one state of the code and one seed, under `folder`; computed where there are none."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self.seed = folder / state_of_code(), seed
        self._folder.mkdir(parents=True, exist_ok=True)
        states = sorted((item for item in folder.iterdir() if item.is_dir()), key=lambda item: item.stat().st_mtime)
        for old in states[:-STATES]:
            shutil.rmtree(old)

    def null(self, null: Null, runs: int, on_progress: Progress) -> NullResult:
        if row := self._read(null.name, runs):
            return NullResult(null, **row)
        result = null_result(null, runs, self.seed, on_progress)
        self._write(null.name, runs, result)
        return result

    def alternative(self, cell: Alternative, runs: int, on_progress: Progress) -> AlternativeResult:
        if row := self._read(cell.name, runs):
            judges = {name: Detection(**found) for name, found in row.pop("judges").items()}
            return AlternativeResult(cell, judges=judges, **row)
        result = alternative_result(cell, runs, self.seed, on_progress)
        self._write(cell.name, runs, result)
        return result

    def _read(self, name: str, runs: int) -> dict[str, Any] | None:
        path = self._folder / file_name(name, self.seed, runs)
        return json.loads(path.read_text()) if path.exists() else None

    def _write(self, name: str, runs: int, result: NullResult | AlternativeResult) -> None:
        """As a whole or not at all."""
        fields = {item.name: getattr(result, item.name) for item in dataclasses.fields(result)}
        row = {name: value for name, value in fields.items() if name not in ("null", "cell")}
        path = self._folder / file_name(name, self.seed, runs)
        half = path.with_suffix(".tmp")
        half.write_text(json.dumps(row, default=dataclasses.asdict))
        half.replace(path)
