"""Flags: defaults, environment, and sentences for nonsense."""

import pytest

from slipway_server.settings import ServerSettings
from tests.support.settings import parsed


def test_defaults_are_the_contract() -> None:
    settings = parsed(ServerSettings.parse, ["--model", "models/tiny-v1"])
    assert (settings.port, settings.probe_port, settings.drain_timeout_s) == (8000, 8001, 600)
    assert (settings.served_model_name, settings.task, settings.dtype) == ("tiny-v1", "auto", "auto")
    assert (settings.model_version, settings.tenant_keys_file) == ("unversioned", "/etc/slipway/tenant/keys.json")


def test_environment_is_a_fallback() -> None:
    environment = {"SLIPWAY_MODEL": "/m", "SLIPWAY_MAX_MODEL_LEN": "128", "SLIPWAY_DRAIN_TIMEOUT": "5"}
    assert parsed(ServerSettings.parse, [], environment).max_model_len == 128
    assert parsed(ServerSettings.parse, ["--drain-timeout", "7"], environment).drain_timeout_s == 7


def test_an_empty_variable_is_a_value() -> None:
    environment = {"SLIPWAY_TENANT_KEYS_FILE": "", "SLIPWAY_HOST": ""}
    settings = parsed(ServerSettings.parse, ["--model", "m", "--model-version", ""], environment)
    assert (settings.tenant_keys_file, settings.host, settings.model_version) == ("", "", "unversioned")


def test_spans_go_to_the_first_endpoint_that_the_environment_names() -> None:
    environment = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert parsed(ServerSettings.parse, ["--model", "m"], environment).spans_endpoint == "http://collector:4318"


@pytest.mark.parametrize("flag", ["enable-debug", "allow-slow", "trust-tenant-header"])
def test_a_switch_is_on_by_its_name_alone(flag: str) -> None:
    field, variable = flag.replace("-", "_"), f"SLIPWAY_{flag.replace('-', '_').upper()}"

    def chosen(flags: list[str], environment: dict[str, str] | None = None) -> bool:
        return bool(getattr(parsed(ServerSettings.parse, ["--model", "m", *flags], environment), field))

    assert not chosen([]) and chosen([f"--{flag}"]) and chosen([f"--{flag}", "on"]) and not chosen([f"--{flag}=off"])
    assert chosen([], {variable: "on"}) and not chosen([f"--{flag}=off"], {variable: "on"})


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--model or SLIPWAY_MODEL is required"),
        (["--model", ""], "--model: name a path"),
        (["--port", "99999"], "--port: '99999' is more than 65535"),
        (
            ["--async-scheduling", "on", "--speculation", "ngram"],
            "--speculation: drafts continue tokens that are known, and with --async-scheduling on a step begins before",
        ),
        (
            ["--speculation", "draft"],
            "--speculative-draft-model: --speculation draft needs the folder of a draft model",
        ),
        (["--speculative-draft-model", "d"], "--speculative-draft-model: it is for --speculation draft, not none"),
        (["--prompt-lookup-min", "9"], "--prompt-lookup-max: 8 is less than --prompt-lookup-min 9"),
        (["--num-speculative-tokens", "17"], "--num-speculative-tokens: '17' is more than 16"),
        (["--max-num-seqs", "0"], "--max-num-seqs: '0' is less than 1"),
        (["--max-model-len", "many"], "--max-model-len: 'many' is not a whole number"),
        (["--drain-timeout", "-1"], "--drain-timeout: '-1' is less than 0"),
        (["--drain-timeout", "nan"], "--drain-timeout: 'nan' is not a finite number"),
        (["--device", "tpu"], "--device: 'tpu' is not auto, cpu"),
        (["--gpu-memory-utilization", "90"], "--gpu-memory-utilization: '90' is more than 1"),
        (["--gpu-memory-utilization", "0"], "--gpu-memory-utilization: '0' is not more than 0"),
        (["--gpu-memory-utilization", "nan"], "--gpu-memory-utilization: 'nan' is not a finite number"),
        (
            ["--task", "paint"],
            "--task: 'paint' is not one of 'auto', 'generate', 'embed', 'predict', 'classify' or 'rerank'",
        ),
        (["--kv-cache-dtype", "fp8"], "'fp8' is not one of 'auto' or 'int8'"),
        (["--kernels", "sse2"], "'sse2' is not one of"),
        (["--cpu-threads-bind", "3-1"], "--cpu-threads-bind: '3-1' is no range of CPUs"),
        (["--cpu-threads-bind", "0,0"], "--cpu-threads-bind: '0,0' names a CPU twice"),
        (["--numa", "on"], "--numa: 'on' is not one of 'auto' or 'off'"),
        (["--replay-window", "-1"], "--replay-window: '-1' is less than 0"),
        (["--enable-debug", "perhaps"], "--enable-debug: 'perhaps' is neither on nor off"),
        (["--max-model", "5"], "unrecognized arguments"),
        (["--task", "paint", "--port", "x"], "--port: 'x' is not a whole number; --task: 'paint' is not one of"),
    ],
)
def test_nonsense_is_refused(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(ServerSettings.parse, [*(["--model", "m"] if flags else []), *flags])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
