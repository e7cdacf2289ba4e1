"""Flags of slipway-predict, and the command by which pods start it."""

import os
import sys

import pytest

from slipway_predict.settings import LANGUAGE_FLAGS, PredictSettings
from slipway_server import __main__ as slipway_server
from tests.support.settings import parsed

BECOMES = (sys.executable, "-P", "-m", "slipway_predict")


class Became(Exception):
    """The process is another program now."""


@pytest.mark.parametrize(
    ("flags", "task"),
    [
        (["--task", "predict"], None),
        (["--task=classify"], None),
        (["--task", "auto", "--task", "rerank"], None),
        ([], "predict"),
    ],
)
def test_slipway_server_becomes_the_server_of_the_task(
    flags: list[str], task: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLIPWAY_TASK", raising=False)
    if task:
        monkeypatch.setenv("SLIPWAY_TASK", task)
    arguments = ["--model", "m", *flags, "--port", "1"]
    monkeypatch.setattr(sys, "argv", ["slipway-server", *arguments])

    def execv(path: str, command: tuple[str, ...]) -> None:
        assert (path, command) == (sys.executable, (*BECOMES, *arguments))
        raise Became

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(Became):
        slipway_server.main()


@pytest.mark.parametrize("flag", LANGUAGE_FLAGS)
def test_flags_that_the_operator_writes_for_every_task_have_no_effect(flag: str) -> None:
    settings = parsed(PredictSettings.parse, ["--model", "m", f"--{flag}", "x", "--port", "7"])
    assert settings == parsed(PredictSettings.parse, ["--model", "m", f"--{flag}=y", "--port=7"])


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--task", "generate"], "--task: 'generate' is not one of 'predict', 'classify' or 'rerank'"),
        (["--max-num-seqs", "4"], "slipway-predict: error: unrecognized arguments: --max-num-seqs 4"),
        (["--dtype"], "slipway-predict: error: argument --dtype: expected one argument"),
        (["--task", "rerank", "--pool-config", "f"], "--pool-config is for --task predict"),
    ],
)
def test_what_is_not_of_a_classic_model_is_refused(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(PredictSettings.parse, ["--model", "m", *flags])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
