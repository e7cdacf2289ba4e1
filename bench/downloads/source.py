"""A server on loopback that sends files by sendfile, as a hub and as a bucket: `source.py PORT FOLDER LISTS MB_PER_S`.

With a rate other than 0 it is a source behind a slower line: all connections share it.
"""

import http.server
import json
import os
import sys
import threading
import time
from pathlib import Path

PIECE_BYTES = 1 << 20


class Pace:
    """When the next bytes may go."""

    def __init__(self, bytes_per_s: int) -> None:
        self._rate, self._lock, self._next_s = bytes_per_s, threading.Lock(), 0.0

    def wait(self, size: int) -> None:
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            at = max(now - 0.05, self._next_s)  # what was missed is not made up for
            self._next_s = at + size / self._rate
        time.sleep(max(0.0, at - now))


class Source(http.server.BaseHTTPRequestHandler):
    """Answers lists, and files with ranges."""

    protocol_version = "HTTP/1.1"
    folder: Path
    lists: dict[str, str]
    pace: Pace

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        found = self.folder / path.rpartition("/")[2]
        if found.is_file():
            return self._send(found)
        body = self.lists["hub" if path.startswith("/api/") else "bucket"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send(self, found: Path) -> None:
        size, wanted = found.stat().st_size, self.headers.get("Range")
        first, last = wanted.removeprefix("bytes=").split("-") if wanted else ("0", "")
        begin, end = int(first), min(int(last or size - 1), size - 1)
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{end}/{size}")
        self.send_header("Content-Length", str(end + 1 - begin))
        self.send_header("ETag", '"a"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.flush()
        with found.open("rb") as file:
            while begin <= end:
                piece = min(PIECE_BYTES, end + 1 - begin)
                self.pace.wait(piece)
                while piece:
                    sent = os.sendfile(self.connection.fileno(), file.fileno(), begin, piece)
                    begin, piece = begin + sent, piece - sent

    def log_message(self, *_: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    Source.folder = Path(sys.argv[2])
    Source.lists = json.loads(Path(sys.argv[3]).read_text())
    Source.pace = Pace(int(sys.argv[4]) * 10**6)
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Source).serve_forever()
