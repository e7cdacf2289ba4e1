"""One file to one function over rows, with one thread: the settings that our own server gives to these runtimes."""

import os
from collections.abc import Callable
from typing import Any

import numpy

Rows = Any  # numpy float32 [rows, features]
BATCH_ROWS = int(os.environ.get("BENCH_BATCH", "1"))
# What peers wait for more rows, where they must be given a time. Their own defaults are 0 (LitServe), 10 ms (Ray).
WAIT_S = 0.005


def load(path: str = os.environ.get("BENCH_MODEL", "")) -> Callable[[Rows], Rows]:
    """Rows to rows of outputs."""
    return _onnx(path) if path.endswith(".onnx") else _xgboost(path)


def _onnx(path: str) -> Callable[[Rows], Rows]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda rows: session.run(None, {name: rows})[0]


def _xgboost(path: str) -> Callable[[Rows], Rows]:
    import xgboost

    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(path)
    return lambda rows: booster.inplace_predict(numpy.ascontiguousarray(rows))
