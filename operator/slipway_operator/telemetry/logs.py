"""Logs as one JSON object a line, with the ModelDeployment that a line is about."""

import contextvars
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

# Per task, so that lines of the API room name the key as well without knowing of it.
_fields: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("log_fields", default=None)


@contextmanager
def about(**fields: Any) -> Iterator[None]:
    """Add fields to every record that is made inside."""
    token = _fields.set({**(_fields.get() or {}), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def add(**fields: Any) -> None:
    """Add fields to the records that follow inside the innermost `about`."""
    _fields.set({**(_fields.get() or {}), **fields})


class JsonFormatter(logging.Formatter):
    """Renders a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "ts": moment,
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
            **(_fields.get() or {}),
        }
        if record.exc_info:
            line["exc"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Send every log of the process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # At DEBUG kopf prints whole objects, secrets included; at INFO `kopf.objects` says `succeeded` for every event.
    logging.getLogger("kopf").setLevel(max(logging.INFO, logging.getLogger().level))
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    for chatty in ("aiohttp.access", "asyncio", "kubernetes"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
