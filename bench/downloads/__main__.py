"""How fast a model is downloaded: `python -m bench.downloads [--mib 1024] [--rounds 3] [--paces 0 200 400]`.

In each round take turns, so that other work on the machine hits all of them:
- source: a plain client that keeps nothing;
- ceiling: the same client, which writes the files to the same disk and computes their sha256;
- hub, bucket: the fetcher. Its rate is that of the download, from its list to the marker, with all checks. The start of
  its process is a column of its own.

Paces are MB/s of the source, 0: as fast as it can. Prints a table and the bars and writes build/reports/downloads.json.
Exit status 1: a bar does not hold.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from devcluster.ports import reserve_port
from testkit.report import Bar, report, write
from testkit.world.program import Launch, running
from tests.fetcher.site import run

OF_SOURCE, OF_CEILING = 0.8, 0.8
SHARDS = 4
URIS = {"hub": "hf://org/model", "bucket": "s3://models/chat"}
HERE = Path(__file__).parent
FASTEST = 0


@dataclass(frozen=True)
class Turn:
    """What one client did with all bytes."""

    mb_per_s: float
    cpu_s_per_gib: float  # of the client's process, start included
    start_s: float


@dataclass(frozen=True)
class Course:
    """One source with its pace."""

    port: int
    size: int  # of a shard
    root: Path

    @property
    def turns(self) -> dict[str, Callable[[], float]]:
        """Each returns the seconds of its download."""
        return {
            "source": self._plain,
            "ceiling": lambda: self._plain(str(self._fresh("plain"))),
            **{name: lambda name=name: self._fetch(name) for name in URIS},  # type: ignore[misc]
        }

    def take(self, turn: Callable[[], float]) -> Turn:
        """Time it, with the CPU of its process."""
        total, began_s, used_s = SHARDS * self.size, time.monotonic(), _used_s()
        download_s = turn()
        whole_s, used_s = time.monotonic() - began_s, _used_s() - used_s
        return Turn(total / download_s / 1e6, used_s / total * 2**30, whole_s - download_s)

    def _plain(self, *target: str) -> float:
        command = [sys.executable, str(HERE / "client.py"), str(self.port), str(self.size), str(SHARDS), *target]
        return float(subprocess.run(command, check=True, capture_output=True).stdout)

    def _fetch(self, name: str) -> float:
        url, dest = f"http://127.0.0.1:{self.port}", self._fresh(name) / "model"
        flags = ("--endpoint", url) if name == "bucket" else ()
        code, words, log = run(dest, URIS[name], "--any-engine", "--allow-host", "127.0.0.1", *flags, HF_ENDPOINT=url)
        assert code == os.EX_OK, words
        return download_s(log)

    def _fresh(self, name: str) -> Path:
        """An empty folder in place of all that was downloaded before."""
        for old in self.root.glob("got-*"):
            shutil.rmtree(old)
        found = self.root / f"got-{name}"
        found.mkdir()
        return found


def download_s(log: str) -> float:
    """From the line after the list to the line after the marker."""
    at = {line["msg"].split()[0]: datetime.fromisoformat(line["ts"]) for line in map(json.loads, log.splitlines())}
    return (at["complete"] - at["downloading"]).total_seconds()


def main() -> int:
    chosen = _arguments()
    size = (chosen.mib << 20) // SHARDS
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "lists.json").write_text(json.dumps(_make(root / "files", size)))
        rows = [row for pace in chosen.paces for row in _paced(root, size, pace, chosen.rounds)]
    bars = _bars(rows)
    for bar in bars:
        print(bar)
    write(report("downloads", rows, bars, mib=chosen.mib, rounds=chosen.rounds))
    return 0 if all(bar.ok for bar in bars) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paces", type=int, nargs="+", default=[FASTEST, 200, 400], help="MB/s; 0: unbounded")
    return parser.parse_args()


def _paced(root: Path, size: int, pace: int, rounds: int) -> list[dict[str, Any]]:
    port = reserve_port()
    command = [sys.executable, str(HERE / "source.py"), str(port), str(root / "files"), str(root / "lists.json")]
    url = f"http://127.0.0.1:{port}"
    with running(Launch([*command, str(pace)], {}, url, f"{url}/api/models"), root / "log", 60):
        course = Course(port, size, root)
        taken = [{name: course.take(turn) for name, turn in course.turns.items()} for _ in range(rounds)]
    rows = [_row(pace, name, taken) for name in taken[0]]
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items() if value is not None))
    return rows


def _row(pace: int, name: str, rounds: list[dict[str, Turn]]) -> dict[str, Any]:
    """Medians; ratios are those of turns of one round."""

    def ratio(to: str) -> float:
        return round(statistics.median(turns[name].mb_per_s / turns[to].mb_per_s for turns in rounds), 2)

    return {
        "pace_mb_per_s": pace or "unbounded",
        "client": name,
        "mb_per_s": round(statistics.median(turns[name].mb_per_s for turns in rounds)),
        "cpu_s_per_gib": round(statistics.median(turns[name].cpu_s_per_gib for turns in rounds), 2),
        "start_s": round(statistics.median(turns[name].start_s for turns in rounds), 2),
        "of_source": ratio("source"),
        "of_ceiling": ratio("ceiling"),
    }


def _bars(rows: list[dict[str, Any]]) -> list[Bar]:
    """Of a source as fast as the cores nothing that stores and checks can take 0.8: there the ceiling counts."""
    found = []
    for row in rows:
        if row["client"] not in URIS:
            continue
        pace, key = row["pace_mb_per_s"], "of_ceiling" if row["pace_mb_per_s"] == "unbounded" else "of_source"
        limit = OF_CEILING if key == "of_ceiling" else OF_SOURCE
        bar = f"{row['client']}: share {key.replace('_', ' the ')}, whose pace is {pace}"
        found.append(Bar(bar, row[key], f">= {limit}", row[key] >= limit))
    return found


def _make(folder: Path, size: int) -> dict[str, str]:
    """Files of random bytes, and how a hub and a bucket list them."""
    folder.mkdir()
    sums = {}
    for shard in range(SHARDS):
        name, body = f"model-{shard}.safetensors", _tensors(random.Random(shard).randbytes(1 << 20), size)
        (folder / name).write_bytes(body)
        sums[name] = hashlib.sha256(body).hexdigest()
    siblings = [{"rfilename": name, "size": size, "lfs": {"size": size, "sha256": sums[name]}} for name in sums]
    entry = (
        "<Contents><Key>chat/{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;a&quot;</ETag>"
    )
    entry += "<Size>{}</Size></Contents>"
    listed = "".join(entry.format(name, size) for name in sums)
    bucket = f"<ListBucketResult><Name>models</Name><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>"
    return {"hub": json.dumps({"sha": "a" * 40, "siblings": siblings}), "bucket": bucket}


def _tensors(block: bytes, size: int) -> bytes:
    """A safetensors file of one tensor."""
    data = size - 8 - 120
    header = json.dumps({"a": {"dtype": "U8", "shape": [data], "data_offsets": [0, data]}}).encode().ljust(120)
    return (len(header).to_bytes(8, "little") + header + block * (size >> 20))[:size]


def _used_s() -> float:
    """CPU of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
