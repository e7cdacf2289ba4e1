"""JSON logs on stderr, one object a line."""

import json
import logging
import sys
from datetime import UTC, datetime

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class GatewayLogFormatter(logging.Formatter):
    """Fields given by `extra=` stand beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        entry.update({key: value for key, value in vars(record).items() if key not in _OWN})
        if record.exc_info:
            entry["exc"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def configure(level: str) -> None:
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(GatewayLogFormatter())
    logging.basicConfig(level=level.upper(), handlers=[stream], force=True)
