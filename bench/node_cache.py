"""What a pod waits for its weights on a node that has them: `python -m bench.node_cache [MIB]`.

Real fetchers on this machine take a model of that size from a loopback server: the first one downloads it, the others
find it.
Also printed: the memory of the process that holds a lease.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fetcher.cache.pods import lease, offer_model, start, weights_requests
from tests.fetcher.site import running_site

_DIRTY = "Pss_Anon"


def main() -> None:
    """Print a line for each fetcher."""
    size = int(sys.argv[1] if len(sys.argv) > 1 else "1024") * 2**20
    with tempfile.TemporaryDirectory() as folder, running_site() as site:
        root = Path(folder)
        offer_model(site, b"GGUF" + random.Random(1).randbytes(2**20) * (size >> 20))
        print(f"imports of a fetcher: {_imports_s():.2f} s")
        with lease(root / "cache", "uid", root) as kept:
            print(f"memory of the process that holds a lease: {_own_mib(kept.pid):.1f} MiB")
            for name in ("first pod", "second pod", "third pod"):
                before, began_s = weights_requests(site), time.monotonic()
                pod = start(site, root / name, root / "cache", "--cache-pod", "uid")
                assert pod.wait() == 0
                took_s = time.monotonic() - began_s
                downloads = weights_requests(site) - before
                print(f"{name}: {took_s:.2f} s, {downloads} downloads of {size / 2**20:.0f} MiB")


def _imports_s() -> float:
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import slipway_fetcher.fetching"], check=True)
    return time.monotonic() - began_s


def _own_mib(pid: int) -> float:
    """Memory that no other process shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{_DIRTY}:")) / 1024


if __name__ == "__main__":
    main()
