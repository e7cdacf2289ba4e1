"""Runs pytest; the few tests that failed run once more by themselves, and are named as defects if they pass then.

`python -m testkit.rerun NAME ARGUMENT...`: the arguments are pytest's, an option and its value in one (`-n3`). Of tens
of thousands of tests on two shared cores one fails by chance now and then, and a whole run for each finds nothing out.
Such a test is a defect all the same: the last lines of the run and `build/reports/failed-once-NAME.json` have it. More
than MOST at a time are no chance.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MOST = 3
_SOME_FAILED = 1  # pytest's exit status; others are errors of the run
_XDIST = ("-n", "--dist", "--no-loadscope-reorder", "--maxprocesses")


def main(arguments: Sequence[str]) -> int:
    name, *options = arguments
    cache = Path("build", "pytest", name)  # of this suite alone: two run at a time
    last_failed = cache / "v" / "cache" / "lastfailed"
    last_failed.unlink(missing_ok=True)
    report = Path("build", "reports", f"failed-once-{name}.json")
    report.unlink(missing_ok=True)
    status = _pytest([*options, "-o", f"cache_dir={cache}"])
    failed = _failed(last_failed) if status == _SOME_FAILED else []
    if not 0 < len(failed) <= MOST:
        return status
    print(f"\n{len(failed)} failed: once more, by itself", flush=True)
    again = _pytest([*_by_itself(options), *failed])
    if again == 0:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(json.dumps(failed, indent=2) + "\n")
        print(f"\nDEFECTS: failed once, and passed by themselves; find out why ({report}):")
        print(*failed, sep="\n", flush=True)
    return again


def _pytest(options: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *options], check=False).returncode


def _failed(last_failed: Path) -> list[str]:
    return list(json.loads(last_failed.read_bytes())) if last_failed.is_file() else []


def _by_itself(options: Sequence[str]) -> list[str]:
    """The options without paths and processes."""
    flags = [option for option in options if option.startswith("-")]
    return [flag for flag in flags if not flag.startswith(_XDIST)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
