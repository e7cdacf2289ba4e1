"""PyTriton: Triton's own server, which gathers batches and calls a function of Python in another process.

python -m bench.predict.apps.pytriton_app PORT GRPC_PORT
"""

import os
import sys
from typing import Any

import numpy
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from bench.predict.apps.runtime import BATCH_ROWS, load

INPUT = os.environ["BENCH_INPUT"]


def main() -> None:
    model = load()

    @batch
    def infer(**inputs: Any) -> dict[str, Any]:
        rows = inputs[INPUT]
        return {"outputs": model(rows).reshape(len(rows), -1)}

    ports = {"http_port": int(sys.argv[1]), "grpc_port": int(sys.argv[2])}
    addresses = {"http_address": "127.0.0.1", "grpc_address": "127.0.0.1"}
    # It needs no time to wait for more rows: while a batch is computed it gathers the next one.
    batches = DynamicBatcher(max_queue_delay_microseconds=0)
    with Triton(config=TritonConfig(**ports, **addresses, allow_metrics=False)) as triton:
        triton.bind(
            model_name="m",
            infer_func=infer,
            inputs=[Tensor(name=INPUT, dtype=numpy.float32, shape=(-1,))],
            outputs=[Tensor(name="outputs", dtype=numpy.float32, shape=(-1,))],
            config=ModelConfig(max_batch_size=BATCH_ROWS, batcher=batches),
        )
        triton.serve()


if __name__ == "__main__":
    main()
