"""The sentence that the operator shows when a container fails, and the exit codes by which it classifies failures."""

import argparse
import logging
import os
from pathlib import Path
from typing import NoReturn

from slipway_process import environment

DEFAULT_LOG = "/dev/termination-log"
LIMIT_BYTES = 4096  # the kubelet reads no more
# As in sysexits.h; docs/contracts.md describes their use. argparse itself exits with 2.
FAILED, DATA_ERROR, NO_INPUT = 1, os.EX_DATAERR, os.EX_NOINPUT

log = logging.getLogger("slipway")


def last_words(sentence: str) -> None:
    """Writes a sentence to the log and to the termination log, whose default file exists only inside a pod."""
    log.error(sentence)
    leave(sentence)


class Parser(argparse.ArgumentParser):
    """Also writes the error about invalid arguments to the termination log, for the operator to show."""

    def error(self, message: str) -> NoReturn:
        leave(f"{self.prog}: {message}")
        super().error(message)


def leave(sentence: str) -> None:
    """Writes a sentence to the termination log alone, where the operator reads why a container ended.

    Does nothing outside a pod, unless the environment names a file.
    """
    chosen = environment.termination_log()
    if not chosen and not Path(DEFAULT_LOG).exists():
        return
    try:
        Path(chosen or DEFAULT_LOG).write_bytes(sentence.encode()[:LIMIT_BYTES])
    except OSError as error:
        log.warning("the termination log cannot be written: %s", error)


def needs_torch(what: str, extras: str, reason: str) -> str:
    """The sentence for a model that this installation cannot serve; `extras` of slipway has what it needs."""
    return (
        f"{what} needs torch and transformers, which are not installed here ({reason}): use the image slipway-server, "
        f"by spec.engine.image or the chart's server.image; elsewhere install slipway[{extras}]."
    )
