"""Models that several tests share, trained once on data that scikit-learn ships."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.predict import onnx_models, trained
from tests.server.process import ServerProcess

PREDICT = ("--task", "predict", "--served-model-name", "m", "--model-version", "v1", "--model-revision", "aaaaaaaaaa")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each format: onnx, xgboost, lightgbm, skops; and identity, with every datatype but BF16."""
    root = tmp_path_factory.mktemp("models")
    trained.save_all(root)
    onnx_models.identity(root / "identity", tuple(kind for kind in onnx_models.TYPES if kind != "BF16"))
    return root


@pytest.fixture(scope="session")
def identity(models: Path) -> Iterator[ServerProcess]:
    with ServerProcess(models / "identity", *PREDICT, "--max-body-bytes", "200000") as process:
        yield process.wait_ready()


@pytest.fixture(scope="session")
def trees(models: Path) -> Iterator[ServerProcess]:
    with ServerProcess(models / "xgboost", *PREDICT) as process:
        yield process.wait_ready()
