"""A load in a thread with an event loop of its own: it serves synchronous and asynchronous callers alike."""

import asyncio
import threading
from collections.abc import Callable, Coroutine


class Background:
    """Runs `send` from `start` until it has ended; `stopping` requests its end."""

    def __init__(self, name: str, send: Callable[[], Coroutine[object, object, None]], ends_within_s: float) -> None:
        """`ends_within_s`: how long the requests that run may take when it stops."""
        self.stopping = threading.Event()
        self._send, self._ends_within_s = send, ends_within_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._crash: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raises RuntimeError when the load itself failed: what it counted is then worth nothing."""
        if self._crash:
            raise RuntimeError(f"the {self._thread.name} itself failed") from self._crash

    def stop(self) -> None:
        """Send no more, and wait for the requests that run; may be called again.

        Raises:
            RuntimeError: when they do not end in time, or the load itself failed.
        """
        self.stopping.set()
        if self._thread.ident is not None:
            self._thread.join(self._ends_within_s)
        self.check()
        if self._thread.is_alive():
            limit = f"{self._ends_within_s:.0f} s"
            raise RuntimeError(f"requests of the {self._thread.name} still run {limit} after it was stopped")

    def _run(self) -> None:
        try:
            asyncio.run(self._send())
        except BaseException as error:
            self._crash = error
