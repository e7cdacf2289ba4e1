"""Flags: defaults, environment, and sentences for nonsense."""

import pytest

from slipway_server.settings import parse


def test_defaults_are_the_contract() -> None:
    settings = parse(["--model", "models/tiny-v1"], {})
    assert (settings.port, settings.probe_port, settings.drain_timeout_s) == (8000, 8001, 600)
    assert (settings.served_model_name, settings.task, settings.dtype) == ("tiny-v1", "auto", "auto")


def test_environment_is_a_fallback() -> None:
    environment = {"SLIPWAY_MODEL": "/m", "SLIPWAY_MAX_MODEL_LEN": "128", "SLIPWAY_DRAIN_TIMEOUT": "5"}
    assert parse([], environment).max_model_len == 128
    assert parse(["--drain-timeout", "7"], environment).drain_timeout_s == 7


def test_debugging_is_switched_on_by_its_name_alone() -> None:
    assert parse(["--model", "m"], {}).enable_debug == "off"
    assert parse(["--model", "m", "--enable-debug"], {}).enable_debug == "on"
    assert parse(["--model", "m"], {"SLIPWAY_ENABLE_DEBUG": "on"}).enable_debug == "on"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--model"),
        (["--port", "99999"], "not a port"),
        (["--max-num-seqs", "0"], "at least 1"),
        (["--drain-timeout", "-1"], "not a number of seconds"),
        (["--drain-timeout", "nan"], "not a number of seconds"),
        (["--device", "tpu"], "not auto, cpu"),
        (["--gpu-memory-utilization", "90"], "not a share above 0 and up to 1"),
        (["--gpu-memory-utilization", "nan"], "not a share above 0 and up to 1"),
        (["--task", "paint"], "invalid choice"),
        (["--kv-cache-dtype", "fp8"], "invalid choice"),
        (["--kernels", "avx2"], "invalid choice"),
        (["--replay-window", "-1"], "not a number of seconds"),
        (["--max-model", "5"], "unrecognized arguments"),
    ],
)
def test_nonsense_is_refused(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([*(["--model", "m"] if flags else []), *flags], {})
    assert sentence in capsys.readouterr().err
