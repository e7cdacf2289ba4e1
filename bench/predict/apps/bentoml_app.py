"""BentoML: one worker, batches where BENCH_BATCH is above 1.

bentoml serve bench.predict.apps.bentoml_app:Model --port PORT
"""

import bentoml
import numpy

from bench.predict.apps.runtime import BATCH_ROWS, load

# Its scheduler finds the time to wait by itself. It refuses what would take longer than the latency given.
BATCHES = {"batchable": True, "max_batch_size": BATCH_ROWS, "max_latency_ms": 10_000} if BATCH_ROWS > 1 else {}


@bentoml.service(workers=1, traffic={"timeout": 30}, logging={"access": {"enabled": False}})
class Model:
    """The service."""

    def __init__(self) -> None:
        self.model = load()

    @bentoml.api(**BATCHES)
    def predict(self, inputs: numpy.ndarray) -> numpy.ndarray:
        return numpy.asarray(self.model(inputs.astype(numpy.float32)))
