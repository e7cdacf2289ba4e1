"""What the operator's log leaves out."""

import logging
import sys
import threading

from slipway_operator.__main__ import _configure_logs


def test_kopf_never_prints_whole_objects(monkeypatch):
    for module in (sys, threading):
        monkeypatch.setattr(module, "excepthook", module.excepthook)
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        _configure_logs("debug")
        assert logging.getLogger("kopf").getEffectiveLevel() == logging.INFO
        assert logging.getLogger("kopf.objects").getEffectiveLevel() == logging.WARNING
    finally:
        root.handlers[:], root.level = before
        logging.captureWarnings(False)
