"""A watch notices what a server's neighbours would: pauses, memory and errors, and not those of this machine."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from testkit.load.watch import Noticed, Watch, best, noticed
from testkit.load.watcher import ANSWERS, IDLE, PROBE, Observed, Pause

# PyDLL keeps the GIL: no thread of the process goes on during such a call.
SERVER = """
import ctypes, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    kept = None
    def do_GET(self):
        if self.path == "/stop":
            ctypes.PyDLL(None).usleep(1_000_000)
        if self.path == "/grow":
            Handler.kept = bytearray(64 << 20)
        self.send_response(500 if self.path == "/fail" else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    """The URL and the process id of a server that stands still, or grows, where it is requested."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}", process.pid
        process.kill()


def test_the_pauses_of_an_idle_process_are_not_those_of_the_server() -> None:
    pauses = [Pause(IDLE, 0.0, 0.3), Pause(PROBE, 0.0, 0.35), Pause(ANSWERS, 0.1, 1.0, 0.2, "broken")]
    seen = noticed(pauses, 5, 6)
    assert seen.pause_s == pytest.approx(0.4)
    assert (seen.growth_bytes, seen.children_bytes, seen.troubles) == (5, 6, ("answers: broken",))
    assert noticed(pauses[:1], 0, 0).pause_s == 0.0


def test_the_best_of_attempts_is_the_shortest_pause_and_the_most_memory() -> None:
    attempts = [Noticed(0.2, 1, 9, ()), Noticed(0.1, 7, 2, ("trouble",))]
    assert best(attempts) == Noticed(0.1, 7, 9, ("trouble",))


@pytest.mark.integration
def test_a_standstill_and_growth_are_noticed(server: tuple[str, int]) -> None:
    url, pid = server
    with Watch(Observed(f"{url}/healthz", [pid], f"{url}/healthz")) as watch:
        stopped = [watch.during(lambda: urllib.request.urlopen(f"{url}/stop").close()) for _ in range(3)]
        grown = watch.during(lambda: urllib.request.urlopen(f"{url}/grow").close())
    assert max(one.pause_s for one in stopped) > 0.5
    assert grown.growth_bytes > 60 << 20 > max(one.growth_bytes for one in stopped)


@pytest.mark.integration
def test_errors_of_neighbours_are_noticed(server: tuple[str, int]) -> None:
    url, pid = server
    with Watch(Observed(f"{url}/fail", [pid], f"{url}/healthz")) as watch:
        assert watch.during(lambda: None).troubles
