"""The operator's image has Python and its packages: operator and gateway start no program but Python itself."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STARTS = re.compile(r"subprocess|\bos\.(system|popen|exec|spawn|posix_spawn)")
# What a process is made of: its first argument.
PYTHON = re.compile(r"create_subprocess_\w+\(\s*([\w.\"']+)")


def test_operator_and_gateway_start_no_program() -> None:
    sources = [path for name in ("operator", "gateway") for path in (ROOT / name).rglob("*.py")]
    assert len(sources) > 100
    starting = [path for path in sources if STARTS.search(path.read_text())]
    assert [str(path.relative_to(ROOT)) for path in starting] == ["gateway/slipway_gateway/guards/workers.py"]
    assert PYTHON.findall(starting[0].read_text()) == ["sys.executable"]
