"""What the process of a model may not do: each attempt is made in a process that is isolated as a model's."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PROGRAM = """
import ctypes, mmap, os, resource, signal, socket, subprocess, sys, threading
from pathlib import Path
from slipway_process.isolation import isolate, limit_memory
model = Path(sys.argv[1])
assert isolate(model)
untouched = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # as the libraries of torch
limit_memory(1 << 30)
assert len(bytearray(1 << 28)) == 1 << 28
def refused(attempt):
    try:
        attempt()
    except (OSError, MemoryError) as error:
        return True
    return False
def queue_signal():
    if ctypes.CDLL(None, use_errno=True).sigqueue(os.getppid(), 0, None):
        raise OSError(ctypes.get_errno(), "sigqueue")
attempts = {
    "secret": lambda: open(sys.argv[2]).read(),
    "environment of the parent": lambda: open(f"/proc/{os.getppid()}/environ").read(),
    "write": lambda: open(model / "new", "w"),
    "socket": lambda: socket.socket(),
    "unix socket": lambda: socket.socket(socket.AF_UNIX),
    "fork": os.fork,
    "program": lambda: subprocess.run(["/bin/true"]),
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "signal": lambda: os.kill(os.getppid(), 0),
    "queued signal": queue_signal,
    "limits of the parent": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE),
    "memory": lambda: bytearray(2 << 30),
}
own = resource.prlimit(0, resource.RLIMIT_NOFILE)
assert own == resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE)
print([name for name, attempt in attempts.items() if not refused(attempt)])
thread = threading.Thread(target=print, args=("threads work",))
thread.start(); thread.join()
print((model / "model").read_text())
"""


def test_a_model_reads_its_folder_and_nothing_else(tmp_path: Path) -> None:
    folder, secret = tmp_path / "folder", tmp_path / "secret"
    folder.mkdir()
    (folder / "model").write_text("its own file")
    secret.write_text("key")
    program = [sys.executable, "-c", PROGRAM, str(folder), str(secret)]
    environment = {"PYTHONPATH": f"{ROOT / 'server'}:{ROOT / 'process'}:{ROOT / 'contracts'}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["[]", "threads work", "its own file"], done.stdout + done.stderr


def test_its_environment_has_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    from slipway_process import environment

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "secret" not in str(environment.for_isolated(1, ROOT))


def test_onnxruntime_reports_nothing_to_its_maker() -> None:
    from slipway_process import environment

    assert environment.for_isolated(1, ROOT)["ORT_DISABLE_TELEMETRY"] == "1"
