"""The log of a process: one JSON object per line on stderr, with the request or object that a line is about."""

import contextvars
import logging
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

# Per task, so that lines of other modules carry these fields too.
_fields: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("log_fields", default=None)
_NAMES = {"name": "logger", "message": "msg", "exc_info": "exc", "stack_info": "stack"}
_FOREIGN = ("k8s_ref", "k8s_skip", "settings")  # kopf's: whole objects

log = logging.getLogger(__name__)


class about:
    """A context: adds fields to every record that is made inside. A generator would cost a gateway's requests more."""

    __slots__ = ("_added", "_token")

    def __init__(self, **fields: Any) -> None:
        self._added = fields

    def __enter__(self) -> None:
        outer = _fields.get()
        self._token = _fields.set({**outer, **self._added} if outer else self._added)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _fields.reset(self._token)


def add(**fields: Any) -> None:
    """Add fields to the records that follow inside the innermost `about`, also of tasks that began in it."""
    inside = _fields.get()
    if inside is None:
        _fields.set(fields)
    else:
        inside.update(fields)


def configure(level: str, **fields: Any) -> None:
    """Send every log of the process to stderr, warnings and uncaught exceptions too; `fields` are in each line."""
    logging.basicConfig(level=level.upper(), handlers=[handler(sys.stderr, fields)], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda one: _uncaught(one.exc_type, one.exc_value, one.exc_traceback)


def handler(stream: TextIO, fields: dict[str, Any]) -> logging.Handler:
    """A handler that writes JSON and escapes all but ASCII, so that no text of a request begins a line of its own."""
    made = logging.StreamHandler(stream)
    made.addFilter(_complete)
    made.setFormatter(
        JsonFormatter(
            ("ts", "level", "name", "message"),
            rename_fields=_NAMES,
            static_fields=fields,
            reserved_attrs=[*RESERVED_ATTRS, *_FOREIGN],
            json_default=str,
        )
    )
    return made


def _complete(record: logging.LogRecord) -> bool:
    record.ts = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    record.level = record.levelname.lower()
    for name, value in (_fields.get() or {}).items():
        record.__dict__.setdefault(name, value)
    return True


def _uncaught(kind: type[BaseException], error: BaseException | None, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error or kind(), trace)
    else:
        # The status of a pod shows this message for a container that crashed.
        log.critical("%s: %s", kind.__name__, error, exc_info=(kind, error or kind(), trace))
