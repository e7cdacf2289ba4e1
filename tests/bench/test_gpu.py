"""The arithmetic of the GPU benchmark, and its message without a GPU."""

import pytest

from bench.engine.shapes import QWEN06
from bench.gpu.__main__ import main
from bench.gpu.roofline import LLAMA8, bars, share, step_bytes


def test_a_step_moves_the_weights_once_and_every_cache() -> None:
    assert step_bytes(LLAMA8, 0, 0) == pytest.approx(15.01e9, rel=1e-3)
    assert step_bytes(QWEN06, 0, 0) == pytest.approx(1.192e9, rel=1e-3)
    assert step_bytes(LLAMA8, 3, 100) - step_bytes(LLAMA8, 0, 0) == 300 * 131072


def test_a_step_that_takes_twice_its_bound_has_half_the_bandwidth() -> None:
    bound_s = step_bytes(QWEN06, 8, 1024) / 4.3e12
    assert share(QWEN06, 8, 1024, 2 * bound_s, 4.3e12) == pytest.approx(0.5)
    # The table that the bars were set by: 16,138 tokens per second of 8 sequences.
    assert 8 / bound_s == pytest.approx(16_138, rel=0.01)


def test_bars_are_those_of_the_batches_that_were_promised() -> None:
    rows: list[dict[str, object]] = [
        {"kind": "decode", "model": "qwen06", "batch": 1, "share": 0.41},
        {"kind": "decode", "model": "llama8", "batch": 1, "share": 0.79},
        {"kind": "decode", "model": "llama8", "batch": 8, "share": 0.1},
        {"kind": "decode", "model": "llama8", "batch": 128, "share": 0.8},
        {"kind": "peer", "model": "qwen06", "peer": "transformers", "ours_times": 2.9},
        {"kind": "peer", "model": "qwen06", "peer": "vllm", "ours_times": 0.5},
        {"kind": "tokens", "model": "tiny-v1", "equal": 1.0},
    ]
    assert [bar["ok"] for bar in bars(rows)] == [True, False, True, False, True]


@pytest.mark.integration  # imports torch
def test_without_a_gpu_it_prints_a_message_and_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.gpu"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main() == 2
    assert "there is no GPU here" in capsys.readouterr().err
