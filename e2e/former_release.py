"""The release before this one: chart and images, built from its own tree in the repository's history.

Its commit is SLIPWAY_FORMER, else `FORMER`. The images come from that tree's own Dockerfiles and its own devcluster.
"""

import io
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from devcluster.places import places
from testkit import ROOT
from testkit.cluster.release import Images

FORMER = "c93bdb6f"  # before the types on the wire were shared, and before an AnalysisRun was an object
BUILD_TIMEOUT_S = 3600


@dataclass(frozen=True, slots=True)
class FormerRelease:
    """What `Installation` needs to install it."""

    chart: Path
    images: Images


def built() -> FormerRelease:
    """Builds it and loads its images into the devcluster; skips where the history does not have it."""
    commit = os.environ.get("SLIPWAY_FORMER", FORMER)
    tree = places().cache / "former" / commit  # not in this tree, where a search would find everything twice
    if not tree.is_dir():
        _unpack(commit, tree)
    command = [sys.executable, "-m", "devcluster", "images"]
    # Its own packages, not those of this tree: relative folders of PYTHONPATH mean its own.
    environment = {**os.environ, "PYTHONPATH": "."}
    done = subprocess.run(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"images of {commit} cannot be built; the reason is above"
    references = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    images = Images(references["operator"], references["server"], references["server-predict"])
    return FormerRelease(tree / "charts" / "slipway", images)


def _unpack(commit: str, tree: Path) -> None:
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history of this checkout does not have {commit}: {archive.stderr.decode().strip()}")
    unfinished = tree.with_suffix(".part")
    unfinished.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(unfinished, filter="data")
    unfinished.rename(tree)
