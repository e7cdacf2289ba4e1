"""Trains the regression of examples/predict-xgboost.yaml on the diabetes data that scikit-learn ships: one second."""

from pathlib import Path

import xgboost
from sklearn.datasets import load_diabetes
from sklearn.metrics import mean_absolute_error
from sklearn.model_selection import train_test_split

FOLDER = Path(__file__).parent / "models" / "diabetes-xgboost"
ROUNDS = 60
PARAMETERS = {"objective": "reg:squarederror", "max_depth": 3, "eta": 0.1, "seed": 0, "nthread": 1}


def main() -> None:
    data = load_diabetes(scaled=False)
    rows, test, progression, measured = train_test_split(data.data, data.target, test_size=0.25, random_state=0)
    matrix = xgboost.DMatrix(rows, label=progression, feature_names=list(data.feature_names))
    booster = xgboost.train(PARAMETERS, matrix, ROUNDS)
    FOLDER.mkdir(exist_ok=True)
    booster.save_model(FOLDER / "model.ubj")
    error = mean_absolute_error(measured, booster.inplace_predict(test, validate_features=False))
    print(f"mean error on {len(test)} patients that it was not trained on: {error:.1f}, of {measured.mean():.1f}")


if __name__ == "__main__":
    main()
