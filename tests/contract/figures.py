"""The shape of the product in numbers: `python -m tests.contract.figures`, which `make check` runs.

Sizes are guidance: outliers are printed and fail nothing. tests/contract/test_layout.py holds what is about direction,
purity, circles and types.
"""

import ast
import graphlib
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
LONG_FILE_LINES, WIDE_FOLDER_FILES = 400, 12  # what is above is printed
NAMES = (
    "operator",
    "gateway",
    "jobs",
    "server",
    "predict",
    "fetcher",
    "cli",
    "console",
    "process",
    "contracts",
    "plane",
)
SERVERS = {"predict": "server", "fetcher": "server"}  # packages in the folder of another one
TRITON = {"slipway_server.kernels.triton.*"}


@dataclass(frozen=True, slots=True)
class Figures:
    """One package."""

    package: str
    files: int
    lines: int
    most_files: int  # in one folder
    depth: int  # of folders below the package
    circles: int  # 1 when modules import one another in a circle


def folder(name: str) -> Path:
    return ROOT / SERVERS.get(name, name) / f"slipway_{name}"


def figures(name: str) -> Figures:
    root = folder(name)
    files = sorted(root.rglob("*.py"))
    return Figures(
        root.name,
        len(files),
        sum(len(path.read_text().splitlines()) for path in files),
        max(Counter(path.parent for path in files).values()),
        max(len(path.relative_to(root).parts) - 1 for path in files),
        int(bool(import_circle(root.name))),
    )


def import_circle(package: str) -> list[str]:
    """Modules that import one another in a circle; empty when there is none."""
    graph = grimp.build_graph(package)
    order = graphlib.TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules})
    try:
        order.prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def duplicated_classes(names: Iterable[str] = NAMES) -> dict[str, int]:
    """Class names with several definitions in the product."""
    paths = (path for name in names for path in sorted(folder(name).rglob("*.py")))
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text())))
    counts = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return {name: count for name, count in counts.items() if count > 1}


def outliers(names: Iterable[str] = NAMES) -> list[str]:
    """Files and folders of the product that are larger than most: a look at whether they hold one idea pays."""
    paths = [path for name in names for path in sorted(folder(name).rglob("*.py"))]
    lines = {path: len(path.read_text().splitlines()) for path in paths}
    long = [f"{path.relative_to(ROOT)}: {count} lines" for path, count in lines.items() if count > LONG_FILE_LINES]
    files = Counter(path.parent for path in paths)
    wide = [f"{path.relative_to(ROOT)}: {count} files" for path, count in files.items() if count > WIDE_FOLDER_FILES]
    return long + wide


def loosened_types() -> list[str]:
    """Modules of the product that mypy checks less strictly than the rest; Triton's language has no types to check."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    if not settings.get("strict"):
        return ["all"]
    relaxed = [item for item in settings.get("overrides", ()) if item.keys() - {"module", "ignore_missing_imports"}]
    modules = (module for item in relaxed for module in _listed(item["module"]))
    return sorted(module for module in modules if module.startswith("slipway_") and module not in TRITON)


def _listed(modules: str | list[str]) -> list[str]:
    return [modules] if isinstance(modules, str) else modules


def main() -> None:
    sys.path[:0] = [str(folder(name).parent) for name in NAMES]
    print("package            files   lines  most files in a folder  depth  import circles")
    for found in map(figures, NAMES):
        print(
            f"{found.package:<18} {found.files:>5} {found.lines:>7} {found.most_files:>23} {found.depth:>6} "
            f"{found.circles:>15}"
        )
    print(f"class names with several definitions: {len(duplicated_classes())}")
    print("outliers:", "; ".join(outliers()) or "none")
    print(f"modules of the product without strict types: {len(loosened_types())}")


if __name__ == "__main__":
    main()
