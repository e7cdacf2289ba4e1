"""JSON logs name the ModelDeployment."""

import json
import logging
import sys

from slipway_operator.telemetry import logs


def line(message="hello", **record):
    made = logging.LogRecord("slipway", logging.INFO, "file", 1, message, (), None)
    vars(made).update(record)
    return json.loads(logs.JsonFormatter().format(made))


def test_a_line_is_one_json_object():
    found = line("two\nlines")
    assert (found["msg"], found["level"], found["logger"]) == ("two\nlines", "info", "slipway")
    assert found["ts"].endswith("+00:00")


def test_fields_belong_to_the_lines_inside():
    with logs.about(key="default/chat"):
        logs.add(generation=4)
        assert (line()["key"], line()["generation"]) == ("default/chat", 4)
    assert "key" not in line()
    assert "generation" not in line()


def test_exceptions_are_told():
    try:
        raise ValueError("broken")
    except ValueError:
        assert "ValueError: broken" in line(exc_info=sys.exc_info())["exc"]


def test_kopf_never_prints_whole_objects():
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logs.configure("DEBUG")
        assert logging.getLogger("kopf").getEffectiveLevel() == logging.INFO
        assert logging.getLogger("kopf.objects").getEffectiveLevel() == logging.WARNING
    finally:
        root.handlers[:], root.level = before
