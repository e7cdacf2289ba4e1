"""A closed loop of gRPC calls, by grpcio's asyncio client and messages that are bytes made before."""

import asyncio
import math
import time

import grpc
import numpy
from grpc import aio

from bench.predict.load import LATE_S, Measured
from bench.predict.models import ModelFile
from bench.predict.programs import NAME
from slipway_predict.http.message_types import ModelInferRequest

INFER = "/inference.GRPCInferenceService/ModelInfer"


def message(model: ModelFile) -> bytes:
    """The row of `protocol_body` as ModelInferRequest with raw contents, as tritonclient sends it."""
    made = ModelInferRequest(model_name=NAME)
    made.inputs.add(name=model.input_name, datatype="FP32", shape=[1, model.features])
    made.raw_input_contents.append(numpy.asarray(model.row(), "<f4").tobytes())
    return bytes(made.SerializeToString())


async def closed_loop(port: int, body: bytes, calls: int, seconds: float) -> Measured:
    """`calls` at a time on one channel, for `seconds`."""
    measured, began_s = Measured(), time.perf_counter()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(INFER)

        async def repeat() -> None:
            while time.perf_counter() - began_s < seconds:
                sent_s = time.perf_counter()
                try:
                    await call(body, timeout=LATE_S)
                    measured.took_s.append(time.perf_counter() - sent_s)
                except grpc.RpcError:
                    measured.took_s.append(math.inf)

        await asyncio.gather(*(repeat() for _ in range(calls)))
    measured.wall_s = time.perf_counter() - began_s
    return measured
