"""Paths of classic models: the Open Inference Protocol v2, KServe's V1, /api/v1/predict and rerankers (pure)."""

from dataclasses import dataclass
from urllib.parse import quote

import msgspec

PREDICT = "/api/v1/predict"
# Of rerankers and classifiers of texts, with the model in the body. A request depends on nothing but it.
TEXT_PATHS = ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/classify")
# Paths of requests with the model in their body.
ROUTED_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
    "/v1/generate",
    "/api/v1/generate",
    "/api/v1/embed",
    PREDICT,
    *TEXT_PATHS,
)
_NAMED = "/api/v1/models/"
_V2, _V1 = "/v2/models/", "/v1/models/"
ENCODINGS = frozenset({"gzip", "deflate"})
PROTOBUF = "application/x-protobuf"  # content type of ModelInferRequest and ModelInferResponse


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A path with the name of a model in it. `version`: the path pins it. `opaque`: the gateway reads no body of it."""

    name: str
    begin: str
    end: str
    version: str = ""
    opaque: bool = False

    def with_model(self, path_qs: str, model: str) -> str:
        """The path for the server: with the model name that it knows, without the version, which chose a revision."""
        _, mark, query = path_qs.partition("?")
        return f"{self.begin}{quote(model, safe=':@')}{self.end}{mark}{query}"


def generate(name: str) -> ModelPath:
    return ModelPath(name, _NAMED, "/generate")


def named_predict(name: str) -> ModelPath:
    return ModelPath(name, _NAMED, "/predict")


def v1_predict(name: str) -> ModelPath:
    return ModelPath(name, _V1, ":predict", opaque=True)


def v2(name: str, version: str, verb: str) -> ModelPath:
    """`verb`: infer, ready, config, stats, or none for the description of the model."""
    return ModelPath(name, _V2, f"/{verb}" if verb else "", version, opaque=True)


def is_inference_protocol(path: str) -> bool:
    """Whether clients of this path expect `error` to be a string, as the inference protocols have it."""
    is_v2 = path == "/v2" or (path.startswith("/v2/") and path not in TEXT_PATHS)
    return is_v2 or (path.startswith(_V1) and path.endswith(":predict"))


def is_predict(path: str) -> bool:
    """Whether the path is one of classic models, whose responses have predictions and no generated text."""
    named = path.startswith(_NAMED) and path.endswith("/predict")
    return path == PREDICT or path in TEXT_PATHS or named or is_inference_protocol(path)


def infers(path: str) -> bool:
    """Whether a request to the path runs a classic model. It stores nothing: its response depends on the body alone."""
    named = path.startswith(_NAMED) and path.endswith("/predict")
    tensors = path.startswith(_V2) and path.endswith("/infer")
    if path == PREDICT or path in TEXT_PATHS:
        return True
    return named or tensors or (path.startswith(_V1) and path.endswith(":predict"))


def error_body(code: str, message: str) -> bytes:
    """An error in the shape of the Open Inference Protocol, with the code beside it."""
    return msgspec.json.encode({"error": message, "code": code})
