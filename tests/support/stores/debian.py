"""Programs of Debian's packages, unpacked once into the cache: nothing is installed."""

import contextlib
import os
import shutil
from pathlib import Path

from devcluster.places import places
from devcluster.processes import run


def program(package: str) -> Path:
    """`/usr/bin/PACKAGE` of a package. Raises CalledProcessError: it cannot be had."""
    folder = places().cache / package
    found = folder / "usr" / "bin" / package
    if not found.exists():
        made = folder.with_name(f"{package}.{os.getpid()}.partial")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        run(["apt-get", "download", package], cwd=made, timeout=120)
        [archive] = made.glob("*.deb")
        run(["dpkg-deb", "-x", archive, made], timeout=60)
        with contextlib.suppress(OSError):
            made.rename(folder)  # another process of this test run may have been faster
        shutil.rmtree(made, ignore_errors=True)
    return found
