"""A plain client: eight ranges at a time, each into one buffer. `client.py PORT BYTES SHARDS [FOLDER]`.

Without a folder it keeps nothing: what the source gives. With one it writes the files there, without a copy more, and
computes the sha256 of each range: what any client has to do that checks and stores the same bytes. Prints the seconds.
"""

import concurrent.futures
import hashlib
import http.client
import os
import sys
import time
from pathlib import Path

PART_BYTES, BUFFER_BYTES = 16 << 20, 1 << 20


def read(port: int, shard: int, begin: int, target: Path | None) -> None:
    """One range of a file."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    wanted = f"bytes={begin}-{begin + PART_BYTES - 1}"
    connection.request("GET", f"/model-{shard}.safetensors", headers={"Range": wanted})
    answer, buffer = connection.getresponse(), memoryview(bytearray(BUFFER_BYTES))
    file = os.open(target / str(shard), os.O_WRONLY | os.O_CREAT, 0o644) if target else None
    digest = hashlib.sha256()
    while count := answer.readinto(buffer):
        if file is not None:
            digest.update(buffer[:count])
            begin += os.pwrite(file, buffer[:count], begin)
    if file is not None:
        os.close(file)
    connection.close()


def main() -> None:
    port, size, shards = (int(argument) for argument in sys.argv[1:4])
    target = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    began_s = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        parts = [(shard, begin) for begin in range(0, size, PART_BYTES) for shard in range(shards)]
        for job in [pool.submit(read, port, shard, begin, target) for shard, begin in parts]:
            job.result()
    print(time.monotonic() - began_s)


if __name__ == "__main__":
    main()
