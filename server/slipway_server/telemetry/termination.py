"""Last words: the one sentence that the operator shows when a container fails."""

import logging
import os
from pathlib import Path

DEFAULT_LOG = "/dev/termination-log"
LIMIT_BYTES = 4096  # the kubelet reads no more

log = logging.getLogger("slipway")


def last_words(sentence: str) -> None:
    """To the log and to the termination log; the default one exists only inside a pod."""
    log.error(sentence)
    chosen = os.environ.get("SLIPWAY_TERMINATION_LOG")
    if not chosen and not Path(DEFAULT_LOG).exists():
        return
    try:
        Path(chosen or DEFAULT_LOG).write_bytes(sentence.encode()[:LIMIT_BYTES])
    except OSError as error:
        log.warning("the termination log cannot be written: %s", error)
