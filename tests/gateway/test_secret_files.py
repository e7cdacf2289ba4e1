"""Log lines about the files of secrets: a new release is no error, a file that is lost is one."""

import base64
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway_gateway.authentication.pepper import LOOK_AGAIN_S, PepperFile
from slipway_gateway.serving.operator_token import OperatorToken


def pepper(path: Path) -> Callable[[], object]:
    now_s = iter(range(0, 1000, int(LOOK_AGAIN_S) + 1))
    return PepperFile(str(path), lambda: next(now_s)).read


def token(path: Path) -> Callable[[], object]:
    file = OperatorToken(str(path))
    return lambda: file.proves("Bearer 0123456789abcdef")


@pytest.mark.parametrize("reader", [pepper, token])
def test_a_secret_that_is_not_there_yet_is_no_error_and_one_that_is_lost_is(
    reader: Callable[[Path], Callable[[], object]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "secret"
    caplog.set_level(logging.INFO)
    read = reader(path)
    read()
    read()
    assert [record.levelname for record in caplog.records] == ["INFO"]
    caplog.clear()
    path.write_bytes(base64.urlsafe_b64encode(b"s" * 48))
    read()
    path.unlink()
    read()
    read()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
