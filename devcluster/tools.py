"""kubectl, helm and kind: from PATH when new enough, else the ones built into the cache."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

from devcluster import pins
from devcluster.errors import DevclusterError
from devcluster.gobuild import build_steps
from devcluster.keys import new_enough
from devcluster.places import Places
from devcluster.processes import run
from devcluster.steps.schedule import Step

_VERSIONS = {
    "kubectl": (["version", "--client"], pins.KUBECTL_AT_LEAST),
    "helm": (["version", "--short"], pins.HELM_AT_LEAST),
    "kind": (["version"], pins.KIND_AT_LEAST),
    "promtool": (["--version"], pins.PROMTOOL_AT_LEAST),
}


def tool(places: Places, name: str, *, must_exist: bool = True) -> Path:
    """The program to use; by default an error with how to get it when there is none."""
    built = _cached(places, name)
    on_path = shutil.which(name)
    if on_path and _is_new_enough(name, on_path):
        return Path(on_path)
    if must_exist and not built.exists():
        raise DevclusterError(f"No {name} on PATH is new enough: run `python -m devcluster build {name}` first.")
    return built


def missing_tools(places: Places) -> tuple[str, ...]:
    """Those of the three that are neither on PATH, new enough, nor built."""
    return tuple(name for name in pins.TOOLS if not tool(places, name, must_exist=False).exists())


def tool_steps(places: Places) -> list[Step]:
    """What must be built before all three can be used."""
    return build_steps(places, missing_tools(places))


def _cached(places: Places, name: str) -> Path:
    known = {binary for module in pins.MODULES.values() for binary, _ in module.binaries}
    if name not in known:
        raise DevclusterError(f"devcluster has no tool called {name}; it has {', '.join(sorted(known))}.")
    return places.binary(name)


@functools.cache
def _is_new_enough(name: str, path: str) -> bool:
    if name not in _VERSIONS:
        return False  # a node's binary is only ever the pinned one
    arguments, at_least = _VERSIONS[name]
    try:
        return new_enough(run([path, *arguments], timeout=10), at_least)
    except DevclusterError:
        return False
