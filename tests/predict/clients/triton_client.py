"""Run with tritonclient's own Python: every datatype, binary and JSON, compression, metadata, errors."""

import sys

import numpy as np
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

URL, KINDS = sys.argv[1], sys.argv[2].split(",")
NUMPY = {"BOOL": bool, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BYTES": np.object_}
client = http.InferenceServerClient(URL)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("m")
assert client.is_model_ready("m", "v1") and not client.is_model_ready("m", "v9")
assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
assert client.get_model_metadata("m")["name"] == "m" and client.get_model_config("m")["max_batch_size"] == 64
assert client.get_model_repository_index()[0]["state"] == "READY"

arrays = {}
for kind in KINDS:
    dtype = NUMPY.get(kind) or getattr(np, kind.lower())
    values = [["ä".encode(), b""]] if kind == "BYTES" else [[0, 1]]
    arrays[kind] = np.array(values, dtype=dtype)
    assert np_to_triton_dtype(arrays[kind].dtype) == kind


def inputs(binary):
    made = []
    for kind, array in arrays.items():
        one = http.InferInput(f"x_{kind}", list(array.shape), kind)
        text = np.array([[b"a", b"b"]], np.object_) if kind == "BYTES" and not binary else array
        one.set_data_from_numpy(text, binary_data=binary or kind == "FP16")
        made.append(one)
    return made


for compressed in (None, "gzip", "deflate"):
    result = client.infer(
        "m", inputs(True), request_compression_algorithm=compressed, response_compression_algorithm=compressed
    )
    for kind, array in arrays.items():
        assert result.as_numpy(f"y_{kind}").tolist() == array.tolist(), kind
wanted = [http.InferRequestedOutput(f"y_{kind}", binary_data=kind == "FP16") for kind in KINDS]
result = client.infer("m", inputs(False), outputs=wanted, request_id="7", model_version="v1")
assert result.get_response()["id"] == "7"
assert result.as_numpy("y_INT64").tolist() == [[0, 1]]
try:
    client.infer("m", inputs(True)[:1])
except InferenceServerException as error:
    assert "is missing" in str(error), error
else:
    raise AssertionError("an input was missing")
assert client.get_inference_statistics("m")["model_stats"][0]["inference_count"] >= 4
print("passed")
