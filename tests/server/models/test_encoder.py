"""Pooling, and how the folder of a model declares it."""

import json
from pathlib import Path

import pytest
import torch

from slipway_server.engine.execution.encoder import pool, read_pooling
from slipway_server.models.devices import LoadError

pytestmark = pytest.mark.integration

STATES = torch.tensor([[[1.0, -5.0], [3.0, 1.0], [99.0, 99.0]], [[2.0, 2.0], [4.0, 4.0], [9.0, 0.0]]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("cls", [[1, -5], [2, 2]]),
        ("mean", [[2, -2], [5, 2]]),
        ("last", [[3, 1], [9, 0]]),
        ("max", [[3, 1], [9, 4]]),
    ],
)
def test_padding_counts_for_nothing(mode: str, expected: list[list[float]]) -> None:
    assert pool(STATES, MASK, mode).tolist() == expected


def test_pooling_follows_the_files_of_the_folder(encoder: Path, tmp_path: Path) -> None:
    assert read_pooling(encoder) == ("mean", True)
    assert read_pooling(tmp_path) == ("mean", True)


def test_unknown_encoders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense"}]))
    with pytest.raises(LoadError, match="Dense"):
        read_pooling(tmp_path)
