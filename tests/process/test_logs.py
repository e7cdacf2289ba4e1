"""A line of the log is one JSON object, whatever a request or an object has in it."""

import io
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_process import logs

ALL = ["ts", "level", "logger", "msg"]


def text(message: str = "hello", *arguments: object, **record: Any) -> str:
    """What a handler writes."""
    stream = io.StringIO()
    made = logging.LogRecord("slipway", logging.INFO, "file", 1, message, arguments, None)
    vars(made).update(record)
    logs.handler(stream, {"model_version": "v1"}).handle(made)
    return stream.getvalue()


def line(message: str = "hello", *arguments: object, **record: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text(message, *arguments, **record))
    return found


def test_a_line_is_one_json_object() -> None:
    found = line("two\nlines", code=500)
    assert list(found)[:4] == ALL
    assert (found["msg"], found["level"], found["logger"]) == ("two\nlines", "info", "slipway")
    assert (found["code"], found["model_version"]) == (500, "v1")
    assert found["ts"].endswith("+00:00")


@given(st.text(), st.text())
def test_no_text_begins_a_line_of_its_own(path: str, model: str) -> None:
    """Of requests and objects come newlines, terminals' escapes, and Unicode's own ends of lines."""
    with logs.about(request_id=path):
        written = text("GET %s", path, model=model)
    assert written.isascii() and written[:-1].isprintable() and written.endswith("}\n")
    assert len(written.splitlines()) == 1
    found = json.loads(written)
    assert (found["msg"], found["model"], found["request_id"]) == (f"GET {path}", model, path)


def test_a_forged_line_stays_inside_its_own() -> None:
    forged = 'x\n{"ts": "2026-01-01", "level": "error", "msg": "forged"}\r\x1b[2J\x85\u2028'
    assert line("path %s", forged)["level"] == "info"
    assert text("path %s", forged).count("\n") == 1


def test_fields_belong_to_the_lines_inside() -> None:
    with logs.about(key="default/chat"):
        logs.add(generation=4)
        assert (line()["key"], line()["generation"]) == ("default/chat", 4)
        assert line(key="other")["key"] == "other"
    assert "key" not in line()
    assert "generation" not in line()


def test_exceptions_are_logged() -> None:
    try:
        raise ValueError("bro\nken")
    except ValueError:
        written = text(exc_info=sys.exc_info())
    assert written.count("\n") == 1 and "ValueError: bro\nken" in json.loads(written)["exc"]


def test_kopfs_objects_are_not_printed() -> None:
    found = line(k8s_ref={"uid": "u"}, k8s_skip=True, settings=object())
    assert not {"k8s_ref", "k8s_skip", "settings"} & set(found)


@pytest.mark.parametrize(
    ("what", "logger", "message"),
    [
        ("raise SystemError('gone\\nwrong')", "slipway_process.logs", "SystemError: gone\nwrong"),
        (
            "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
            "slipway_process.logs",
            "ZeroDivisionError: division by zero",
        ),
        ("import warnings; warnings.warn('old\\nway')", "py.warnings", "UserWarning: old\nway"),
        ("import logging; logging.getLogger('any.library').error('a\\nb')", "any.library", "a\nb"),
    ],
)
def test_all_output_of_a_process_is_such_a_line(what: str, logger: str, message: str) -> None:
    program = f"from slipway_process import logs; logs.configure('info', model_version='v1')\n{what}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parent)
    (found,) = [json.loads(each) for each in ended.stderr.splitlines()]
    assert list(found)[:4] == ALL
    assert (found["logger"], found["model_version"]) == (logger, "v1") and message in found["msg"]
