"""One root file system by mmdebstrap: what every image starts from on a machine without a registry.

The node, the images in it that call programs, and the project's own share its layer: it is made, kept and loaded once.
"""

from __future__ import annotations

from pathlib import Path

from devcluster import pins
from devcluster.engine.engine import ENGINE_PROGRAMS, Engine, install_packages, missing_packages
from devcluster.engine.facts import machine
from devcluster.keys import key_of
from devcluster.places import Places, appears_whole
from devcluster.processes import run
from devcluster.steps.schedule import Step

LANE = "packages"  # of what waits for a network or a disk, beside what compiles
_LEAVE_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_PACKAGES = (*pins.NODE_PACKAGES, *pins.PYTHON_PACKAGES)
BASE_IMPORTED = "import the base"  # the step after which the engine has it


def base_tar(places: Places) -> Path:
    """Where the root file system lies while images are made of its tar file."""
    return places.cache / "bases" / f"{_key()}.tar"


def base_reference() -> str:
    """The same as an image in the engine's store."""
    return f"localhost/slipway-base:{_key()}"


def base_steps(places: Places, engine: Engine, *, tar: bool) -> list[Step]:
    """From nothing to the image in the engine's store; `tar`: the file is needed as well."""
    packages = missing_packages(ENGINE_PROGRAMS)
    target = base_tar(places)

    def made() -> bool:
        return target.exists() or (not tar and engine.has_image(base_reference()))

    return [
        Step("install packages", lambda: not packages, lambda: install_packages(packages), ", ".join(packages),
             lane=LANE),
        Step("base file system", made, lambda: _make(places), "Debian packages", lane=LANE),
        Step(BASE_IMPORTED, lambda: engine.has_image(base_reference()),
             lambda: engine.run("import", target, base_reference()), lane=LANE),
    ]  # fmt: skip


def _make(places: Places) -> None:
    """Downloads and unpacks the packages."""
    temporary = places.work / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    with appears_whole(base_tar(places)) as target:
        run(
            [
                "mmdebstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}",
                *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEAVE_OUT),
                "--customize-hook=rm -rf \"$1\"/var/cache/apt/* \"$1\"/var/lib/apt/lists/* \"$1\"/var/log/*.log",
                pins.DEBIAN, target,
            ],
            env={"TMPDIR": str(temporary)},
        )  # fmt: skip


def _key() -> str:
    return key_of([pins.DEBIAN, machine(), *_PACKAGES, *_LEAVE_OUT])
