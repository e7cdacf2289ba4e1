"""Which kernels compute on a GPU: Triton's, or torch's with a warning where Triton cannot start one."""

import logging
from typing import Any

import pytest
import torch

from slipway_server.kernels import pointwise
from slipway_server.models.generator import _on_gpu

pytestmark = pytest.mark.integration


class NoCompiler:
    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        raise RuntimeError("Failed to find C compiler.")


def test_triton_computes_where_it_can() -> None:
    assert _on_gpu(options()).name == "triton"


def test_where_triton_cannot_start_a_kernel_torch_computes_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pointwise, "rms_norm", NoCompiler())
    with caplog.at_level(logging.WARNING):
        assert _on_gpu(options()).name == "torch"
    assert "Failed to find C compiler" in caplog.text and "install gcc" in caplog.text
