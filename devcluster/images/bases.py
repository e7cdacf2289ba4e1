"""Root file systems by mmdebstrap: what images start from on a machine without a registry."""

from __future__ import annotations

from pathlib import Path

from devcluster import pins
from devcluster.engine.engine import Engine
from devcluster.engine.facts import machine
from devcluster.keys import key_of
from devcluster.places import Places, appears_whole
from devcluster.processes import run

_LEAVE_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_PACKAGES = {"node": pins.NODE_PACKAGES, "proxy": pins.PROXY_PACKAGES, "python": pins.PYTHON_PACKAGES}


def base_tar(places: Places, name: str) -> Path:
    """Where the root file system called node, proxy or python lies, or will lie."""
    return places.cache / "bases" / f"{name}-{_key(name)}.tar"


def base_reference(name: str) -> str:
    """The same as an image in the engine's store."""
    return f"localhost/slipway-base-{name}:{_key(name)}"


def make_base(places: Places, name: str) -> None:
    """Downloads and unpacks the packages: about 25 s."""
    temporary = places.work / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    with appears_whole(base_tar(places, name)) as target:
        run(
            [
                "mmdebstrap", "--variant=minbase", f"--include={','.join(_PACKAGES[name])}",
                *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEAVE_OUT),
                "--customize-hook=rm -rf \"$1\"/var/cache/apt/* \"$1\"/var/lib/apt/lists/* \"$1\"/var/log/*.log",
                pins.DEBIAN, target,
            ],
            env={"TMPDIR": str(temporary)},
        )  # fmt: skip


def import_base(places: Places, engine: Engine, name: str) -> None:
    """Puts the root file system into the engine's store."""
    engine.run("import", base_tar(places, name), base_reference(name))


def _key(name: str) -> str:
    return key_of([pins.DEBIAN, machine(), *_PACKAGES[name], *_LEAVE_OUT])
