"""The fetcher's settings: those that only flags set, and those that the environment of a pod may set."""

import pytest

from slipway_fetcher.settings import FetcherSettings
from tests.support.settings import parsed

NAMED = ["--uri", "hf://org/m", "--dest", "/d"]


def test_variables_that_pods_set() -> None:
    environment = {
        "SLIPWAY_PIN_FILE": "/pin",
        "SLIPWAY_FETCHER_ALLOW_NETWORKS": "10.0.0.0/8, fd12::/16",
        "HF_TOKEN": " canary\n",
        "HF_ENDPOINT": "",
        "SLIPWAY_LOG_LEVEL": "DEBUG",
    }
    settings = parsed(
        FetcherSettings.parse, [*NAMED, "--allow-network", "192.168.0.0/16", "--allow-network", "fd00::/8"], environment
    )
    assert (str(settings.pin_file), settings.log_level) == ("/pin", "debug")
    assert settings.allow_network == ("192.168.0.0/16", "fd00::/8")
    assert settings.allow_networks == ("10.0.0.0/8", "fd12::/16")
    assert (settings.hub_endpoint, settings.hub_token.get_secret_value()) == ("https://huggingface.co", "canary")
    assert "canary" not in repr(settings)


def test_no_variable_opens_the_machine_or_changes_what_is_downloaded() -> None:
    names = ("allow_host", "allow_network", "uri", "revision", "dest", "max_bytes", "endpoint", "region", "account")
    values = {"max_bytes": "1"}
    environment = {
        spelling: values.get(name, "evil")
        for name in names
        for spelling in (name, name.upper(), f"SLIPWAY_{name.upper()}", f"SLIPWAY_FETCHER_{name.upper()}")
    }
    assert parsed(FetcherSettings.parse, NAMED, environment) == parsed(FetcherSettings.parse, NAMED)


def test_all_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(FetcherSettings.parse, ["--max-bytes", "-1"])
    assert ended.value.code == 2
    assert "--uri is required; --dest is required; --max-bytes: '-1' is less than 0" in capsys.readouterr().err
