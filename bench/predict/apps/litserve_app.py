"""LitServe: one worker, batches where BENCH_BATCH is above 1.

python -m bench.predict.apps.litserve_app PORT
"""

import sys
from typing import Any

import litserve
import numpy

from bench.predict.apps.runtime import BATCH_ROWS, WAIT_S, load


class Api(litserve.LitAPI):
    """A request has one row."""

    def setup(self, device: str) -> None:
        self.model = load()

    def decode_request(self, request: dict[str, Any]) -> Any:
        return numpy.asarray(request["inputs"][0], numpy.float32)

    def predict(self, row: Any) -> Any:
        return self.model(row) if row.ndim == 2 else self.model(row[None])[0]

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"outputs": [output.tolist()]}


if __name__ == "__main__":
    batches = {"max_batch_size": BATCH_ROWS, "batch_timeout": WAIT_S} if BATCH_ROWS > 1 else {}
    server = litserve.LitServer(Api(**batches), accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, log_level="warning", generate_client_file=False
    )
