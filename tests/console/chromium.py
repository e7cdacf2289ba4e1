"""A browser for tests: Chromium from a package of npm, so that no machine needs one, and none is installed as root."""

import contextlib
import functools
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from tests.support import npm

LOCKED = Path(__file__).with_name("browser")
UNPACK_S = 120.0


@functools.cache
def executable() -> str:
    """The path of the browser. The first call on a machine downloads 70 MB and unpacks them into the cache."""
    folder = npm.installed(LOCKED)
    unpacked = folder / "unpacked"
    unpacked.mkdir(exist_ok=True)
    done = subprocess.run(
        [str(npm.programs() / "node"), "executable.js"],
        cwd=folder,
        env={**npm.environment(), "TMPDIR": str(unpacked)},
        capture_output=True,
        text=True,
        timeout=UNPACK_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@functools.cache
def axe() -> str:
    """The script of axe-core."""
    return (npm.installed(LOCKED) / "node_modules" / "axe-core" / "axe.min.js").read_text()


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    # Its sandbox needs rights that containers and root do not have; it opens pages of this machine alone.
    async with async_playwright() as driver:
        made = await driver.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        try:
            yield made
        finally:
            await made.close()


def pictures(folder: Path) -> Path:
    """Where screenshots go: $SLIPWAY_SCREENSHOTS, else the test's own folder."""
    made = Path(os.environ.get("SLIPWAY_SCREENSHOTS") or folder)
    made.mkdir(parents=True, exist_ok=True)
    return made
