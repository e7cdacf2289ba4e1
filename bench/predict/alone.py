"""The model alone, without a server: what a call of one row takes, and the rows per second of whole batches.

BENCH_MODEL=FILE python -m bench.predict.alone ROW ROWS
"""

import json
import statistics
import sys
import time

import numpy

from bench.predict.apps.runtime import load

CALLS = 300


def main(row: list[float], batch: int) -> None:
    """Prints both as JSON: `service_ms`, `rows_per_s`."""
    predict, rows = load(), numpy.asarray([row] * batch, "f4")
    print(json.dumps({"service_ms": _seconds(predict, rows[:1]) * 1e3, "rows_per_s": batch / _seconds(predict, rows)}))


def _seconds(predict: object, rows: object) -> float:
    assert callable(predict)
    took_s = []
    for _ in range(CALLS + 20):
        began_s = time.perf_counter()
        predict(rows)
        took_s.append(time.perf_counter() - began_s)
    return statistics.median(took_s[20:])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
