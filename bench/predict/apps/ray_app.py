"""Ray Serve: one replica, batches where BENCH_BATCH is above 1.

python -m bench.predict.apps.ray_app PORT
"""

import sys
import time
from typing import Any

import numpy
import ray
from ray import serve
from starlette.requests import Request

from bench.predict.apps.runtime import BATCH_ROWS, WAIT_S, load


class Model:
    """A request has one row."""

    def __init__(self) -> None:
        self.model = load()

    @serve.batch(max_batch_size=max(2, BATCH_ROWS), batch_wait_timeout_s=WAIT_S)
    async def together(self, rows: list[Any]) -> list[Any]:
        return list(self.model(numpy.stack(rows)))

    async def __call__(self, request: Request) -> dict[str, Any]:
        row = numpy.asarray((await request.json())["inputs"][0], numpy.float32)
        output = await self.together(row) if BATCH_ROWS > 1 else self.model(row[None])[0]
        return {"outputs": [output.tolist()]}


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(sys.argv[1])}, logging_config={"enable_access_log": False}
    )
    deployment = serve.deployment(max_ongoing_requests=256, ray_actor_options={"num_cpus": 0.1})(Model)
    serve.run(deployment.bind(), route_prefix="/predict")
    while True:
        time.sleep(60)
