"""MLServer: a runtime of one's own. Its two files of settings, also of batches, are written by `programs`."""

from typing import Any

import numpy
from mlserver import MLModel, types
from mlserver.codecs import NumpyCodec

from bench.predict.apps.runtime import load


class Model(MLModel):
    """Of the Open Inference Protocol's own shapes."""

    async def load(self) -> bool:
        self.function = load()
        return True

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        rows: Any = NumpyCodec.decode_input(payload.inputs[0]).astype(numpy.float32)
        output = NumpyCodec.encode_output("outputs", self.function(rows))
        return types.InferenceResponse(model_name=self.name, outputs=[output])
