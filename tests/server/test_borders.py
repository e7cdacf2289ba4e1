"""What only one module of the server may touch: the device."""

import ast
from pathlib import Path

import slipway_server

PACKAGE = Path(slipway_server.__file__).parent


def modules_with(*expressions: str) -> set[str]:
    """Modules whose code has one of these attribute expressions, such as `os.environ`."""
    return {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in expressions
    }


def test_only_one_module_calls_cuda() -> None:
    assert modules_with("torch.cuda") == {"kernels/cuda.py"}
