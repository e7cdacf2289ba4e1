"""Last words: the sentence that the operator shows when a container fails, and the exit code that it sorts it by."""

import argparse
import logging
import os
from pathlib import Path
from typing import NoReturn

from .. import environment

DEFAULT_LOG = "/dev/termination-log"
LIMIT_BYTES = 4096  # the kubelet reads no more
# As in sysexits.h; docs/contracts.md says which is when. argparse itself exits with 2.
FAILED, DATA_ERROR, NO_INPUT = 1, os.EX_DATAERR, os.EX_NOINPUT

log = logging.getLogger("slipway")


def last_words(sentence: str) -> None:
    """To the log and to the termination log; the default one exists only inside a pod."""
    log.error(sentence)
    leave(sentence)


class Parser(argparse.ArgumentParser):
    """Refuses arguments with a sentence that the operator shows too."""

    def error(self, message: str) -> NoReturn:
        leave(f"{self.prog}: {message}")
        super().error(message)


def leave(sentence: str) -> None:
    """To the termination log alone: what the operator reads of a container that ended."""
    chosen = environment.termination_log()
    if not chosen and not Path(DEFAULT_LOG).exists():
        return
    try:
        Path(chosen or DEFAULT_LOG).write_bytes(sentence.encode()[:LIMIT_BYTES])
    except OSError as error:
        log.warning("the termination log cannot be written: %s", error)
