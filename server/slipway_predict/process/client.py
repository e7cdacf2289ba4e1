"""The HTTP process's end of the process of a model: starts it, sends a batch, waits for its outputs, ends it."""

import asyncio
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from slipway_process import environment, machine
from slipway_process.serving.restarts import EngineCrashed, EngineError, ModelRefused

from ..tensors import Tensor, TensorError
from .messages import (
    BatchError,
    Compute,
    Computed,
    FromModel,
    LoadModel,
    ModelLoaded,
    ModelUnusable,
    ProtocolError,
    encode,
    pack,
    unpack,
)
from .wire import HttpWire

LOAD_S = 600.0
EXIT_S = 10.0
ROOT = Path(__file__).parents[2]  # of the child's package
CHILD = "slipway_predict.process.child"


class BatchFailed(Exception):
    """The model raised an error; its process goes on."""


class ModelProcess:
    """The process of a model, at most one at a time. `start` may be called again when it has ended.

    `module`: which the process runs.
    """

    def __init__(self, batch_timeout_s: float, module: str = CHILD) -> None:
        self._batch_timeout_s, self._module = batch_timeout_s, module
        self._process: asyncio.subprocess.Process | None = None
        self._wire: HttpWire | None = None

    async def start(self, start: LoadModel) -> ModelLoaded:
        """Start the process, and wait until it has loaded the model.

        Raises:
            ModelRefused: the model cannot be served, and why.
            EngineError: the process ended while it loaded, or took too long.
        """
        try:
            async with asyncio.timeout(LOAD_S):
                message = await self._first_message(start)
        except TimeoutError:
            await self.kill()
            raise EngineError(f"The model was not loaded within {LOAD_S:.0f} s.") from None
        except (ConnectionError, ProtocolError):
            raise EngineError(f"{await self.kill()} while it loaded the model.") from None
        except asyncio.CancelledError:
            await self.kill()
            raise
        if isinstance(message, ModelLoaded):
            return message
        await self.kill()
        if isinstance(message, ModelUnusable):
            raise ModelRefused(message.reason)
        raise EngineError("The process of the model does not begin as it must.")

    async def _first_message(self, start: LoadModel) -> FromModel:
        http_end, model_end = socket.socketpair()
        with model_end:
            _, self._wire = await asyncio.get_running_loop().create_connection(HttpWire, sock=http_end)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", self._module, str(model_end.fileno())),
                pass_fds=(model_end.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env=environment.for_isolated(start.threads, ROOT),
            )
        message, _ = await self._wire.exchange(encode(start), LOAD_S)
        return message

    async def compute(self, inputs: Sequence[Tensor], outputs: Sequence[str]) -> tuple[list[Tensor], float]:
        """Outputs of a batch, and the seconds that the model took.

        Raises:
            BatchFailed: the model raised an error for it.
            EngineCrashed: its process ended, or took too long and was ended.
        """
        assert self._wire, "only a started process computes"
        heads, data = pack(inputs)
        try:
            batch = encode(Compute(heads, list(outputs)), data)
            message, received = await self._wire.exchange(batch, self._batch_timeout_s)
            if isinstance(message, BatchError):
                raise BatchFailed(message.reason)
            if not isinstance(message, Computed):
                raise ProtocolError("an answer to nothing")
            return unpack(message.tensors, received), message.seconds
        except TimeoutError:
            await self.kill()
            raise EngineCrashed(f"The model took more than {self._batch_timeout_s:g} s for a batch.") from None
        except ConnectionError:
            raise EngineCrashed(f"{await self.kill(EXIT_S)} while it computed a batch.") from None
        except (ProtocolError, TensorError) as error:
            await self.kill()
            raise EngineCrashed(f"The process of the model sent what is no answer: {error}.") from None

    def peak_bytes(self) -> int:
        """The most memory that the process has had since its start, in bytes; 0 where there is no process."""
        process = self._process
        return machine.peak_memory_bytes(process.pid) if process and process.returncode is None else 0

    async def ended(self) -> None:
        """Returns when the process ends by itself, between two batches."""
        assert self._process, "only a started process ends"
        await self._process.wait()

    async def kill(self, wait_s: float = 0.0) -> str:
        """End the process; return how it ended, in words. `wait_s`: seconds for it to end by itself before."""
        if self._wire:
            self._wire.close()
        if self._process is None:
            return "The process of the model was not started"
        if wait_s and self._process.returncode is None:
            try:
                async with asyncio.timeout(wait_s):
                    await self._process.wait()
            except TimeoutError:
                pass
        if self._process.returncode is None:
            self._process.kill()
        status = await self._process.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"The process of the model {how}"
