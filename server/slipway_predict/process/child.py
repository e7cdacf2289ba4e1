"""The process of a model: isolates itself, loads the file, and computes one batch after the other."""

import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from slipway_process import collector, isolation, logs

from ..description import CLASSIFICATION
from ..formats import RUNTIMES, LoadedModel, ModelError, hide, loader
from ..tensors import TensorError
from . import warm_up
from .messages import BatchError, Compute, Computed, LoadModel, ModelLoaded, ModelUnusable, pack, unpack
from .wire import ModelWire, ServerHungUp

log = logging.getLogger("slipway.predict")


NO_CLASSIFIER = (
    "The model is no classifier that names its labels, which the task classify needs: write spec.model.task: predict, "
    "or add config.json with id2label beside an ONNX model and its preprocessor_config.json."
)


def main() -> None:
    serve(_load)


def serve(load: Callable[[ModelWire, LoadModel], LoadedModel]) -> None:
    """Answers the HTTP process until it hangs up. `load`: isolates this process, and sends what came of the start."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the HTTP process decides when to end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wire = ModelWire(socket.socket(fileno=int(sys.argv[1])))
    try:
        start, _ = wire.receive()
        assert isinstance(start, LoadModel), "the first message says what to load"
        logs.configure(start.log_level)
        model = load(wire, start)
        collector.spare()
        while True:
            message, data = wire.receive()
            assert isinstance(message, Compute), "a model is started only once"
            _compute(wire, model, message, data)
    except ServerHungUp:
        pass


def _load(wire: ModelWire, start: LoadModel) -> LoadedModel:
    began = time.monotonic()
    if start.format in RUNTIMES:
        # skops imports all modules of scikit-learn, and one of these torch, where it is: 490 MB for nothing.
        hide("torch")
    try:
        module = loader(start.format)
        bounded = isolation.isolate(Path(start.path).resolve().parent)
        isolation.limit_memory(start.memory_bytes)
        model = module.load(Path(start.path), start.threads)
        if start.classifier and model.description.task != CLASSIFICATION:
            raise ModelError(NO_CLASSIFIER)
        description = warm_up.checked(model)
        measured = warm_up.measure(model, description, start.max_batch_size)
    except (ModelError, isolation.IsolationError) as error:
        wire.send(ModelUnusable(str(error)))
        sys.exit(1)
    except MemoryError:
        wire.send(ModelUnusable(f"The model does not fit into {start.memory_bytes} bytes of memory."))
        sys.exit(1)
    wire.send(ModelLoaded(description, time.monotonic() - began, measured, bounded))
    return model


def _compute(wire: ModelWire, model: LoadedModel, message: Compute, data: memoryview) -> None:
    try:
        inputs = unpack(message.tensors, data)
        began = time.perf_counter()
        outputs = model.run(inputs, message.outputs)
        seconds = time.perf_counter() - began
        heads, pieces = pack(outputs)
    except TensorError as error:
        wire.send(BatchError(str(error)))
    except MemoryError:
        wire.send(BatchError("the model ran out of memory"))
    except Exception as error:  # whatever a runtime raises is about this batch
        wire.send(BatchError(f"{type(error).__name__}: {str(error)[:300]}"))
    else:
        wire.send(Computed(heads, seconds), pieces)


if __name__ == "__main__":
    main()
