"""Trains the classic models of examples/predict-*.yaml on the irises that scikit-learn ships: a second of one core."""

from pathlib import Path
from typing import Any

import skops.io
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

MODELS = Path(__file__).parent / "models"


def main() -> None:
    rows, labels = load_iris(return_X_y=True)
    pipeline: Any = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, labels)
    for name in ("iris-skops", "iris-onnx"):
        (MODELS / name).mkdir(exist_ok=True)
    skops.io.dump(pipeline, MODELS / "iris-skops" / "model.skops")
    (MODELS / "iris-onnx" / "model.onnx").write_bytes(to_onnx(pipeline, rows[:1].astype("f4")).SerializeToString())


if __name__ == "__main__":
    main()
