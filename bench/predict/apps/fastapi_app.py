"""FastAPI with a model in its process, as it is written by hand. Without batches.

python -m bench.predict.apps.fastapi_app PORT
"""

import sys

import numpy
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from bench.predict.apps.runtime import load

app = FastAPI()
predict = load()


class Body(BaseModel):
    """The request."""

    inputs: list[list[float]]


@app.post("/predict")
async def answer(body: Body) -> dict[str, list[object]]:
    """Rows to rows."""
    return {"outputs": predict(numpy.asarray(body.inputs, numpy.float32)).tolist()}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
