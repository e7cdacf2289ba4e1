"""Run with tritonclient's own Python: every datatype, metadata, errors, streams and deadlines over gRPC."""

import queue
import sys

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

URL, KINDS = sys.argv[1], sys.argv[2].split(",")
NUMPY = {"BOOL": bool, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BYTES": np.object_}
client = grpc.InferenceServerClient(URL)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("m")
assert client.is_model_ready("m", "v1") and not client.is_model_ready("m", "v9") and not client.is_model_ready("n")
assert "binary_tensor_data" in client.get_server_metadata().extensions
model = client.get_model_metadata("m")
assert model.name == "m" and list(model.inputs[0].shape) == [-1, 2] and len(model.inputs) == len(KINDS)
assert {one.version for one in client.get_model_repository_index().models} == {"v1", "v2"}

arrays = {}
for kind in KINDS:
    dtype = NUMPY.get(kind) or getattr(np, kind.lower())
    values = [["ä".encode(), b""]] if kind == "BYTES" else [[0, 1]]
    arrays[kind] = np.array(values, dtype=dtype)
    assert np_to_triton_dtype(arrays[kind].dtype) == kind


def inputs(rows=1):
    made = []
    for kind, array in arrays.items():
        repeated = np.repeat(array, rows, axis=0)
        one = grpc.InferInput(f"x_{kind}", list(repeated.shape), kind)
        one.set_data_from_numpy(repeated)
        made.append(one)
    return made


for rows in (1, 3, 0):
    result = client.infer("m", inputs(rows), request_id="7", priority=400, client_timeout=60)
    assert result.get_response().id == "7"
    for kind, array in arrays.items():
        assert result.as_numpy(f"y_{kind}").tolist() == np.repeat(array, rows, axis=0).tolist(), (kind, rows)
wanted = [grpc.InferRequestedOutput("y_INT64")]
result = client.infer("m", inputs(), outputs=wanted, model_version="v2", headers={"x-request-id": "mine"})
assert result.get_response().model_version == "v2" and len(result.get_response().outputs) == 1
for bad, words in (({"inputs": inputs()[:1]}, "is missing"), ({"inputs": inputs(), "sequence_id": 5}, "'sequence_")):
    try:
        client.infer("m", **bad)
    except InferenceServerException as error:
        assert words in str(error) and error.status() == "StatusCode.INVALID_ARGUMENT", error
    else:
        raise AssertionError("it was wrong")

came = queue.Queue()
client.start_stream(lambda result, error: came.put((result, error)))
for number in range(10):
    client.async_stream_infer("m" if number != 4 else "n", inputs(), request_id=str(number))
for number in range(10):
    result, error = came.get(timeout=60)
    if number == 4:
        assert "does not exist" in str(error)
    else:
        assert error is None and result.get_response().id == str(number)
        assert result.as_numpy("y_INT64").tolist() == [[0, 1]]
client.stop_stream()
print("passed")
