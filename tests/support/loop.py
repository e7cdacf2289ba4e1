"""The event loop of asynchronous tests."""

import asyncio
import time

_PATIENCE_S = 2.0


class PatientLoop(asyncio.SelectorEventLoop):
    """Closes when the connections that its test has closed are closed.

    A TLS connection closes in some turns of the loop after `close`, and libraries do not wait for it. On a busy
    machine the loop of a test would end before, and the next test be blamed for an unclosed transport.
    """

    def close(self) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not self.is_closed() and self._closing() and time.monotonic() < end:
            self.run_until_complete(asyncio.sleep(0.01))
        super().close()

    def _closing(self) -> bool:
        transports = list(self._transports.values())  # type: ignore[attr-defined]
        return any(transport._sock is not None for transport in transports)
