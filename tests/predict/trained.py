"""One classifier of irises in each format."""

from pathlib import Path
from typing import Any

FEATURES = ["sepal_length", "sepal_width", "petal_length", "petal_width"]


def save_all(root: Path) -> None:
    import lightgbm
    import skops.io
    from skl2onnx import to_onnx
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows, labels = load_iris(return_X_y=True)
    for name in ("onnx", "lightgbm", "skops"):
        (root / name).mkdir(parents=True)
    pipeline: Any = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, labels)
    skops.io.dump(pipeline, root / "skops" / "model.skops")
    (root / "onnx" / "model.onnx").write_bytes(to_onnx(pipeline, rows[:1].astype("f4")).SerializeToString())
    save_trees(root / "xgboost")
    parameters = {"objective": "multiclass", "num_class": 3, "verbose": -1, "num_threads": 1}
    lightgbm.train(parameters, lightgbm.Dataset(rows, labels), 10).save_model(root / "lightgbm" / "model.txt")


def save_trees(folder: Path) -> None:
    """The one of XGBoost, which names its features."""
    import xgboost
    from sklearn.datasets import load_iris

    rows, labels = load_iris(return_X_y=True)
    folder.mkdir(parents=True, exist_ok=True)
    matrix = xgboost.DMatrix(rows, label=labels, feature_names=FEATURES)
    booster = xgboost.train({"objective": "multi:softprob", "num_class": 3, "nthread": 1}, matrix, 10)
    booster.save_model(folder / "model.ubj")
