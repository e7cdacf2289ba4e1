"""What may import what: a start must not wait for torch twice, and decisions must not depend on the machine."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import slipway_server

PACKAGE = Path(slipway_server.__file__).parent


def test_http_processes_and_the_fetcher_import_no_torch() -> None:
    code = (
        "import sys, slipway_server.language, slipway_predict.__main__, slipway_fetcher.__main__;"
        "print([m for m in ('torch', 'transformers', 'huggingface_hub') if m in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, check=True, capture_output=True, text=True
    ).stdout
    assert output.strip() == "[]"


@pytest.mark.parametrize("name", ["engine/request.py", "engine/scheduling/scheduler.py", "text/stops.py"])
def test_pure_rooms_stay_pure(name: str) -> None:
    tree = ast.parse((PACKAGE / name).read_text())
    imported = {
        module.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert not imported & {"torch", "transformers", "time", "os", "random", "asyncio", "logging", "socket"}
