"""Run with kserve's own Python: V2 with binary data."""

import asyncio
import sys

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

URL, KINDS = sys.argv[1], sys.argv[2].split(",")
NUMPY = {"BOOL": bool, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BYTES": np.object_}


def inputs():
    made = []
    for kind in KINDS:
        values = [["a", "b"]] if kind == "BYTES" else [[0, 1]]
        array = np.array(values, dtype=NUMPY.get(kind) or getattr(np, kind.lower()))
        one = InferInput(name=f"x_{kind}", shape=list(array.shape), datatype=kind)
        one.set_data_from_numpy(array, binary_data=True)
        made.append(one)
    return made


async def main():
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    assert await client.is_server_live(URL) and await client.is_server_ready(URL)
    assert await client.is_model_ready(URL, "m")
    request = InferRequest(model_name="m", infer_inputs=inputs(), parameters={"binary_data_output": True})
    answer = await client.infer(URL, request, model_name="m")
    for output in answer.outputs:
        kind = output.datatype
        found = output.as_numpy().tolist()
        assert found in ([[0, 1]], [[b"a", b"b"]], [["a", "b"]]), (kind, found)
    assert len(answer.outputs) == len(KINDS)
    print("passed")


asyncio.run(main())
