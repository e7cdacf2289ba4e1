"""The tree keeps its shape: sizes, names, docstrings, and no package that shadows the standard library."""

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TORCH_IMPORTED, UNIT
from tests.contract import figures

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = tuple(map(figures.folder, figures.NAMES))
# devcluster runs programs on foreign machines, and testkit serves many; they are held to the same sizes.
SOURCES = sorted(path for folder in (*PACKAGES, ROOT / "devcluster", ROOT / "testkit") for path in folder.rglob("*.py"))
FUNCTION_LINES = 60
PARAMETERS = 7
FOLDER_DEPTH = 5
LEAST_FIELDS = 4  # by which a type is known: others have the same name and revision by chance
# transformers calls it with these.
FOREIGN_SIGNATURES = {"server/slipway_server/models/foreign.py:attend"}
FORBIDDEN_FILES = {
    "utils",
    "util",
    "helpers",
    "helper",
    "common",
    "misc",
    "base",
    "manager",
    "handler",
    "handlers",
    "impl",
}
FORBIDDEN_CLASS_ENDS = ("Utils", "Helper", "Manager", "Handler", "Impl", "Base")
STANDARD_NAMES = {"BlockManager"}  # vLLM's name for what allocates the blocks of the KV cache


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """Parsed on the first call, not when tests are collected."""
    return {path: ast.parse(path.read_text()) for path in SOURCES}


@functools.cache
def definitions() -> list[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """Every function and class: one walk for all tests."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [(path, node) for path, tree in trees().items() for node in ast.walk(tree) if isinstance(node, kinds)]


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 30


def test_folders_on_the_build_path_are_no_packages() -> None:
    """operator/__init__.py would shadow the standard library's operator for every Python started here."""
    assert not [package for package in PACKAGES if (package.parent / "__init__.py").exists()]


def test_files_have_a_docstring() -> None:
    docstrings = {_name(path): ast.get_docstring(tree) or "" for path, tree in trees().items()}
    assert not [name for name, text in docstrings.items() if not text.split("\n")[0].endswith((".", "`"))]


def test_functions_are_short() -> None:
    assert not {name: _lines(node) for name, node in _functions() if _lines(node) > FUNCTION_LINES}


def test_functions_take_few_parameters() -> None:
    # Triton's kernels take pointers and sizes one by one: it knows no structures.
    plain = [(name, node) for name, node in _functions() if not any(map(_is_kernel, node.decorator_list))]
    many = {name: _parameters(node) for name, node in plain if _parameters(node) > PARAMETERS}
    assert not {name: count for name, count in many.items() if name not in FOREIGN_SIGNATURES}


def test_no_unit_test_imports_torch(request: pytest.FixtureRequest) -> None:
    """Importing torch takes longer than a thousand unit tests: tests that need it are marked as integration."""
    if request.config.getoption("markexpr") != UNIT:
        pytest.skip("other parts import it")
    assert not request.config.stash[TORCH_IMPORTED], "a file of the unit part imports torch: mark it as integration"


def test_files_are_named_after_a_noun() -> None:
    assert not [_name(path) for path in SOURCES if path.stem in FORBIDDEN_FILES]


def test_classes_are_named_after_a_noun() -> None:
    classes = [node for _, node in definitions() if isinstance(node, ast.ClassDef)]
    # http.server's own word for what answers a request.
    found = [node.name for node in classes if "BaseHTTPRequestHandler" not in map(ast.unparse, node.bases)]
    vague = {name for name in found if name.lstrip("_").endswith(FORBIDDEN_CLASS_ENDS)}
    assert vague == STANDARD_NAMES


def test_folders_are_shallow() -> None:
    assert not [_name(path) for path in SOURCES if len(path.relative_to(ROOT).parts) > FOLDER_DEPTH]


def test_folders_have_a_docstring() -> None:
    parts = {path: path.relative_to(ROOT).parts for path in SOURCES}
    narrow = {path.parent for path in SOURCES if parts[path][0] != "devcluster"}
    folders = sorted(narrow)
    assert len(folders) > 20
    packages = [folder for folder in folders if not folder.name.startswith("slipway_")]
    docstrings = {_name(folder): ast.get_docstring(trees()[folder / "__init__.py"]) or "" for folder in packages}
    assert not [name for name, text in docstrings.items() if len(text.split("\n")) < 3]


@pytest.mark.parametrize("name", figures.NAMES)
def test_no_modules_import_one_another_in_a_circle(name: str) -> None:
    assert figures.import_circle(f"slipway_{name}") == []


def test_a_wire_type_is_described_once() -> None:
    """What processes exchange is described in `contracts/`: neither its name nor its fields are written again."""
    classes = [(path, node) for path, node in definitions() if isinstance(node, ast.ClassDef)]
    ours = {node.name: _fields(node) for path, node in classes if _is_contract(path)}
    shapes = {fields for fields in ours.values() if len(fields) >= LEAST_FIELDS}
    assert len(ours) > 20 and len(shapes) > 10
    others = [(f"{_name(path)}:{node.name}", node) for path, node in classes if not _is_contract(path)]
    assert not [name for name, node in others if node.name in ours or _fields(node) in shapes]


def test_types_are_strict_in_the_whole_product() -> None:
    assert figures.loosened_types() == []


def test_no_file_names_the_machine_it_was_written_on() -> None:
    """Paths of one machine are invalid on all others."""
    listed = ["git", "ls-files", "-co", "--exclude-standard", "--", "*.py", "*.md", "*.yaml", "*.toml", "Makefile"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = [name for name in files if any(path in _text(ROOT / name) for path in _workplace(name))]
    assert not found


def _workplace(name: str) -> tuple[str, ...]:
    # devcluster mounts files into build containers, where root's home is a fact.
    return ("/work" + "/",) if name.startswith("devcluster/") else ("/work" + "/", "/root" + "/")


def _text(path: Path) -> str:
    # A file that was listed may be gone a moment later in a shared tree.
    return path.read_text() if path.exists() else ""


def _is_contract(path: Path) -> bool:
    return path.is_relative_to(figures.folder("contracts"))


def _fields(node: ast.ClassDef) -> frozenset[str]:
    items = (item.target for item in node.body if isinstance(item, ast.AnnAssign))
    return frozenset(target.id for target in items if isinstance(target, ast.Name))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, node in definitions():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{_name(path)}:{node.name}", node


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_kernel(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).startswith("triton.jit")


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Only those by position: keyword arguments are named at the call."""
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return len([name for name in names if name not in ("self", "cls")])
